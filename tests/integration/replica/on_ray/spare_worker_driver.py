"""Run in a process of its own: actors of a Ray with replicas' environment, one after the other.

Prints for each whether its worker ran before the actor was wanted, and what it had imported.
"""

import json
import os
import sys
import time

import psutil
import ray

from services.replica.ray_worker.spare import start_spare_worker

_WITHIN_S = 60.0
_LOOK_S = 0.05


@ray.remote(num_cpus=0)
class Actor:
    """Stands for a replica."""

    def facts(self) -> tuple[int, bool]:
        """The worker's process, and whether Ray imported ahead in it."""
        return os.getpid(), "services.replica.ray_worker.imports" in sys.modules


def idle_workers() -> set[int]:
    """Processes of workers that have taken nothing yet."""
    return {
        process.pid
        for process in psutil.Process().children(recursive=True)
        if any("ray::IDLE" in word for word in process.cmdline())
    }


def until_idle() -> set[int]:
    """Wait for an idle worker."""
    until_s = time.monotonic() + _WITHIN_S
    while not (found := idle_workers()):
        assert time.monotonic() < until_s, "Ray started no worker"
        time.sleep(_LOOK_S)  # neither Ray nor psutil has an event of a process's new name
    return found


def main() -> None:
    """Two actors, each on a worker that was there."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    actors = []
    for _ in range(2):
        idle = until_idle()
        actors.append(Actor.remote())
        pid, has_imported = ray.get(actors[-1].facts.remote())
        print(json.dumps({"was_idle": pid in idle, "has_imported": has_imported}), flush=True)
        start_spare_worker()
    ray.shutdown()


if __name__ == "__main__":
    main()
