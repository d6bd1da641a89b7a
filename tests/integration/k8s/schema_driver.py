"""Has Ray and our application read Serve configs: one line of JSON each on standard input."""

import json
import sys

from ray.serve.schema import ServeDeploySchema

from services.contracts.errors import InvalidRequestError
from services.replica.app import application, deployment_of


def main() -> None:
    """Print, for each config, the deployments that our application names and Ray's label keys."""
    for line in sys.stdin:
        config = json.loads(line)
        parsed = ServeDeploySchema.model_validate(config)
        labels = [
            sorted(deployment.ray_actor_options.label_selector)
            for app in parsed.applications
            for deployment in app.deployments
        ]
        built = [deployment_of(app["args"])[0].name for app in config["applications"]]
        print(json.dumps({"labels": labels, "deployments": built, "refused": refusal(config)}))


def refusal(config: dict[str, list[dict[str, dict[str, str]]]]) -> str:
    """What our application says of an argument that it does not know."""
    try:
        application(config["applications"][0]["args"] | {"modle": "x"})
    except InvalidRequestError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
