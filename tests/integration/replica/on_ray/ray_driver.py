"""A Ray of its own with one application: `python ray_driver.py ARGS`, ARGS is JSON.

A process, because Ray leaves helper processes and warnings behind in its driver. Prints a
line once replicas are ready; deletes the application when standard input ends.
"""

import json
import sys

import ray
from ray import serve

from services.replica.app import application


def main() -> None:
    """Serve until told to stop."""
    app = application(json.loads(sys.argv[1]))
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    serve.run(app, name="toy", route_prefix=None)
    print("ready", flush=True)
    sys.stdin.read()
    serve.delete("toy")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
