"""An application on a real Serve whose replicas report a load: `python scaling_driver.py`.

Each keeps three tenths of a GPU busy. Prints each number of replicas that run, until it has been
the same for a while, and how many there are once another model runs that had no room beside them.
"""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve

from services.controller.platform.ray.replica_fleet import _deployments
from services.replica import app

_LOOK_S = 0.2
_GROWN_WITHIN_S = 240.0
# Longer than Serve's reports and the policy's mean.
_SAME_FOR_S = 20.0
PRESSED = {"busy": 1.0, "pressed": 0.9, "processors": 0.3, "calls": 1000.0}
_KEY = "SMELT_TEST_LOAD"


class Reporting:
    """Reports what a file says."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings` are a replica's."""

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the file says."""
        found: dict[str, float] = json.loads(Path(os.environ[_KEY]).read_text())
        return found


def main() -> None:
    """Serve until the number stays."""
    load = Path(tempfile.mkdtemp()) / "load.json"
    load.write_text(json.dumps(PRESSED | {"gpu": 0.3}))
    os.environ[_KEY] = str(load)
    app.ReplicaDeployment = Reporting  # type: ignore[attr-defined]
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        labels={"smelt.io/generation": "cuda-sm90"},
    )
    args = {"model": "m", "store_url": "s", "cache_dir": "c", "num_replicas": "auto"}
    serve.start(proxy_location="Disabled")
    application = app.application(args | {"gpu_share": 0.05})
    serve.run(application, name="smelt:m:1:cuda-sm90", route_prefix=None)
    numbers = [1]
    began_s = since_s = time.monotonic()
    while time.monotonic() - since_s < _SAME_FOR_S or (
        numbers[-1] < 3 and time.monotonic() - began_s < _GROWN_WITHIN_S
    ):
        load.write_text(json.dumps(PRESSED | {"gpu": 0.3 * numbers[-1]}))
        if (found := _num_running()) != numbers[-1]:
            numbers.append(found)
            since_s = time.monotonic()
        time.sleep(_LOOK_S)
    other = app.application(args | {"model": "n", "gpu_share": 0.9})
    serve.run(other, name="smelt:n:1:cuda-sm90", route_prefix=None)
    numbers.append(_num_running())
    serve.shutdown()
    ray.shutdown()
    # After the last words of Ray.
    print(json.dumps(numbers), flush=True)


def _num_running() -> int:
    (replicas,) = (found["replicas"] for key, found in _deployments().items() if key.name == "m")
    return sum(each["state"] == "RUNNING" for each in replicas)


if __name__ == "__main__":
    main()
