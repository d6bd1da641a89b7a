"""A Ray of its own that is told what to serve as KubeRay tells it: `serve_driver.py LABELS`.

The Serve config comes as one line of JSON on standard input and goes to the dashboard's REST
interface. Prints one line of JSON when all applications run; an empty config is applied, and
Ray ended, when standard input ends. A process, because Ray leaves helpers in its driver.
"""

import json
import os
import sys
import time
from typing import Any
from urllib.request import Request, urlopen

import ray

# Serve tells nobody when an application runs: KubeRay asks every two seconds.
_POLL_S = 0.2
_PATIENCE_S = 120.0


def main() -> None:
    """Serve until told to stop."""
    config = json.loads(sys.stdin.readline())
    context = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=True,
        log_to_driver=False,
        labels=json.loads(sys.argv[1]),
    )
    applications = f"http://{context.dashboard_url}/api/serve/applications/"
    put(applications, config)
    details = running(applications)
    print(json.dumps(details), flush=True)
    sys.stdin.read()
    put(applications, {"applications": []})
    ray.shutdown()


def put(url: str, document: Any) -> None:
    """Apply a config; raises when Serve refuses it."""
    request = Request(url, data=json.dumps(document).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    urlopen(authorised(request), timeout=60).close()


def authorised(request: Request) -> Request:
    """With the token that the RayService's authOptions have KubeRay make."""
    request.add_header("Authorization", f"Bearer {os.environ['RAY_AUTH_TOKEN']}")
    return request


def running(url: str) -> Any:
    """Serve's own words once every application runs."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        with urlopen(authorised(Request(url)), timeout=30) as answer:
            details = json.loads(answer.read())
        states = {app["status"] for app in details["applications"].values()}
        if states == {"RUNNING"}:
            return details
        if states & {"DEPLOY_FAILED", "UNHEALTHY"}:
            break
        time.sleep(_POLL_S)  # Serve's dashboard tells nobody when an application runs
    raise SystemExit(f"applications do not run: {json.dumps(details['applications'])}")


if __name__ == "__main__":
    main()
