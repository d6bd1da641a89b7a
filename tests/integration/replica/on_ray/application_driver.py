"""A Ray whose node may use one processor: `python application_driver.py ARGS`, ARGS is JSON.

Prints what an application asks for that is built before there is any node, then the threads
that a replica on a node that simulates a GPU has, the host that it announces and its node's
address, and ends. A process, because Ray leaves
helpers in its driver, and because this one gives its processors away.
"""

import json
import os
import sys
from typing import Any

import ray
from ray import serve

from services.contracts.hardware.labels import GENERATION_LABEL, SIMULATED_LABEL
from services.replica import app
from services.replica.deployment import ReplicaDeployment, settings_here

GENERATION = "cuda-sm90"


class ToldDeployment(ReplicaDeployment):
    """Tells what it found."""

    async def announced(self) -> str:
        """The host that its port is announced under."""
        return str(settings_here({})["announced_host"])

    async def threads(self) -> tuple[str, str, int]:
        """The variables as a call sees them, and what torch made of the number."""
        import torch

        number, policy = os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]
        return number, policy, torch.get_num_threads()


def asked_options(args: dict[str, Any]) -> dict[str, Any]:
    """What an application asks Ray for."""
    plain, asked = serve.deployment, list[dict[str, Any]]()

    def deployment(*given: Any, **options: Any) -> Any:
        asked.append(options["ray_actor_options"])
        return plain(*given, **options)

    serve.deployment = deployment
    try:
        app.application(args)
    finally:
        serve.deployment = plain
    (options,) = asked
    return options


def main() -> None:
    """Serve, ask and stop."""
    args = json.loads(sys.argv[1]) | {"generation": GENERATION, "gpu_share": 0.25}
    early = asked_options(args)
    app.ReplicaDeployment = ToldDeployment  # type: ignore[attr-defined]
    everything = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everything)})
    labels = {GENERATION_LABEL: GENERATION, SIMULATED_LABEL: GENERATION}
    ray.init(
        address="local", num_cpus=2, labels=labels, include_dashboard=False, log_to_driver=False
    )
    os.sched_setaffinity(0, everything)
    serve.start(proxy_location="Disabled")
    handle = serve.run(app.application(args), name="toy", route_prefix=None)
    threads = handle.threads.remote().result(timeout_s=60)
    announced = handle.announced.remote().result(timeout_s=60)
    (node,) = (node["NodeManagerAddress"] for node in ray.nodes())
    serve.shutdown()
    ray.shutdown()
    # After the last words of Ray.
    print(json.dumps([early, threads, announced, node]), flush=True)


if __name__ == "__main__":
    main()
