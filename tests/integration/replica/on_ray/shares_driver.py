"""A controller's loop over a real Ray with one logical GPU: `python shares_driver.py DIR`.

Replicas are bare: what is asked of Ray is the same, and no GPU is needed. Prints what was found
as JSON. A process, because Ray leaves helpers in its driver.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import serve

from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import MasterRecord, ProofOutcome
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from services.controller.platform.ray.ray_nodes import RayNodes
from services.controller.platform.ray.replica_fleet import RayServeFleet
from services.replica import app
from tests.documents import small_key, small_manifest, small_proof

GENERATION = "cuda-sm90"
LIMIT_S = 300.0
# The loops' seconds pass so much faster.
HASTE = 3.0
GIB = 2**30
# 4 GiB of weights: an unproven replica needs 17.52 GiB, with headroom 21.8.
NUM_PARAMETERS = 2**30
# With a context 25.52 GiB, with headroom 31.8.
PROVEN = {"peak_memory_bytes": 20 * GIB, "eager_peak_memory_bytes": 5 * GIB}


class Bare:
    """Takes its place, and does nothing."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """`settings` are a replica's."""


class Controllers:
    """One controller after the other over one store and one Ray."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.registry = Registry(open_store(str(folder / "store")), folder / "cache")
        store = str(folder / "store")
        self.fleet = RayServeFleet("auto", "services.replica.app:application", store)
        self.state = FleetState("u", 1)
        self.submitted: list[DeploymentKey] = []
        self._deploy = self.fleet.deploy
        self.fleet.deploy = self.deploy  # type: ignore[method-assign]

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        """Write down what Serve is asked for."""
        self.submitted.append(key)
        self._deploy(key, args)

    def add(self, name: str, share: float | None = None) -> None:
        """Publish the next version of a model."""
        number = len(self.registry.versions(name)) + 1 if name in self.registry.model_names() else 1
        fingerprint = f"{name}-{number}"
        master = MasterRecord(
            digest=f"digest-{fingerprint}",
            files={},
            inputs=(),
            outputs=(),
            opset=23,
            num_parameters=NUM_PARAMETERS,
        )
        self.registry.add_model_version(
            name=name,
            master=master,
            recipe=Recipe(gpu_share=share),
            source="s",
            source_fingerprint=fingerprint,
            samples=None,
        )

    def prove(self, name: str) -> None:
        """Publish an engine of a model's first version that needs more than its estimate."""
        key = small_key(master_digest=f"digest-{name}-1", generation=GENERATION)
        proof = small_proof(ProofOutcome.PASSED).model_copy(update=PROVEN)
        self.registry.publish_engine(small_manifest(key), {}, proof)

    def shares(self) -> dict[str, float]:
        """What Serve asks Ray for, by model."""
        return {k.name: h.gpu_share for r in self.fleet.rooms().values() for k, h in r.held.items()}

    def start(self) -> "asyncio.Task[None]":
        """Begin to look again and again; cancelled, it is a controller that ended."""
        self.state = FleetState("u", 1)
        args = {"store_url": str(self._folder / "store"), "cache_dir": str(self._folder / "cache")}
        loop = ReconcileLoop(
            self.registry,
            RayNodes(),
            self.state,
            self.fleet,
            args | {"controller_address": ""},
            resync_s=1,
            clock=lambda: HASTE * time.monotonic(),
        )
        return asyncio.create_task(loop.run())

    async def until(self, is_so: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Wait until what serves is as wanted."""
        until_s = time.monotonic() + LIMIT_S
        while not is_so(found := self.found()):
            if time.monotonic() > until_s:
                raise TimeoutError(f"found {found}")
            await asyncio.sleep(0.5)
        return found

    def found(self) -> dict[str, str]:
        """The state of each version, or why it has no place."""
        return {f"{m.name} {m.version}": m.unplaced or m.state for m in self.state.models()}


async def main(folder: Path) -> dict[str, Any]:
    """Two models on a GPU, one of which grows, a third without room, a second version of one."""
    fleet = Controllers(folder)
    running = fleet.start()
    fleet.add("a")
    await fleet.until(lambda found: found == {"a 1": "READY"})
    shares = [fleet.shares()]
    fleet.prove("a")
    await fleet.until(lambda _: len(fleet.submitted) == 2)
    await fleet.until(lambda found: found == {"a 1": "READY"})
    fleet.add("b", 0.6)
    both = {"a 1": "READY", "b 1": "READY"}
    await fleet.until(lambda found: found == both)
    shares.append(fleet.shares())
    fleet.add("c", 0.2)
    refused = await fleet.until(lambda found: "needs" in found.get("c 1", ""))
    fleet.registry.remove_model("c")
    await fleet.until(lambda found: found == both)
    # 0.717 are there once version 1 is gone.
    fleet.add("b", 0.65)
    swapped = {"a 1": "READY", "b 2": "READY"}
    await fleet.until(lambda found: found == swapped)
    running.cancel()
    # Another controller starts none of them again.
    running = fleet.start()
    await fleet.until(lambda found: found == swapped)
    await asyncio.sleep(3)
    running.cancel()
    submitted = [f"{key.name} {key.version}" for key in fleet.submitted]
    return {"shares": shares, "refused": refused["c 1"], "submitted": submitted}


if __name__ == "__main__":
    app.ReplicaDeployment = Bare  # type: ignore[attr-defined]
    labels = NodeClass(generation=GENERATION, memory_gib=100).labels()
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=1,
        labels=labels,
        include_dashboard=False,
        log_to_driver=False,
    )
    serve.start(proxy_location="Disabled")
    result = asyncio.run(main(Path(sys.argv[1])))
    serve.shutdown()
    ray.shutdown()
    # After the last words of Ray.
    print(json.dumps(result), flush=True)
