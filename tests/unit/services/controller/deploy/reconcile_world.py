"""A reconcile loop over a real registry; only Ray and the nodes are faked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from services.contracts.errors import NotReadyError
from services.contracts.hardware.labels import GENERATION_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import BlobRef, MasterRecord, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey, NodePool, Unplaced
from services.controller.room import Held, Room
from services.pb import fleet_v1_pb2 as fleet

NODE = "node"
OLD, NEW = "cuda-sm80", "cuda-sm90"
# Long enough for any machine; it only ends a test that fails.
LIMIT_S = 60.0


class FakeFleet:
    """Records what Ray would be asked.

    Attributes:
        fault: makes deployments fail.
        starting: versions that never get ready.
        no_room, gives_way: why replicas are placed nowhere, and what would make room.
        shares: of GPUs, as Serve has them.
        num_gpus, free: of the node of each generation; what is free, of all of them together.
        broken: raised by the next question for metrics addresses.
    """

    is_placing = True
    absence = "nowhere to go"

    def __init__(self) -> None:
        self.asked: list[tuple[DeploymentKey, dict[str, Any]]] = []
        self.present: list[DeploymentKey] = []
        self.removed: list[DeploymentKey] = []
        self.fault = ""
        self.starting: set[tuple[str, int]] = set()
        self.broken: list[BaseException] = []
        self.removal_fault = ""
        self.no_room = ""
        self.gives_way: tuple[DeploymentKey, ...] = ()
        self.shares: dict[DeploymentKey, float] = {}
        self.num_gpus = 1.0
        self.free = 1.0

    def start(self) -> None:
        """Nothing to start."""

    def num_wanted(self, model: str, version: int) -> int | None:
        """Nobody else places replicas."""
        return None

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        self.asked.append((key, args))
        self.shares[key] = args.get("gpu_share", 0.0)
        if key not in self.present:
            self.present.append(key)

    def deployed(self) -> list[DeploymentKey]:
        return list(self.present)

    def is_running(self, key: DeploymentKey) -> bool:
        if self.fault:
            raise NotReadyError(self.fault)
        return key[:2] not in self.starting

    def unplaced(self, key: DeploymentKey) -> Unplaced:
        return Unplaced(self.no_room, self.gives_way)

    def rooms(self) -> dict[str, Room]:
        """Of one node; what is present has its place there."""
        held = {
            key: Held(amounts={"GPU": self.shares.get(key, 0.0)}, nodes=(NODE,))
            for key in self.present
        }
        node = {"NodeID": NODE, "Resources": {"GPU": self.num_gpus}}
        free = {NODE: {"GPU": self.free}}
        return {
            each: Room.of(each, [node | {"Labels": {GENERATION_LABEL: each}}], free, held)
            for each in (OLD, NEW)
        }

    def remove(self, key: DeploymentKey) -> None:
        if self.removal_fault:
            raise RuntimeError(self.removal_fault)
        self.removed.append(key)
        self.present.remove(key)

    def metrics_addresses(self) -> list[str]:
        if self.broken:
            raise self.broken.pop()
        return ["h:1"]

    def stop(self) -> None:
        """Nothing to stop."""


class Nodes:
    """A source of nodes as the test wants them."""

    def __init__(self, *generations: str) -> None:
        self.generations = list(generations)
        self.memory_gib = 0
        self.fault = ""

    def pools(self) -> list[NodePool]:
        if self.fault:
            raise NotReadyError(self.fault)
        return [
            NodePool(
                node_class=NodeClass(generation=g, memory_gib=self.memory_gib),
                source="ray",
                num_nodes=1,
            )
            for g in self.generations
        ]


def add(
    registry: Registry, fingerprint: str, name: str = "m", recipe: Recipe | None = None
) -> ModelVersion:
    master = MasterRecord(
        digest=f"digest-{fingerprint}",
        files={"model.onnx": BlobRef(sha256="0" * 64, num_bytes=1)},
        inputs=(),
        outputs=(),
        opset=23,
        num_parameters=0,
    )
    return registry.add_model_version(
        name=name,
        master=master,
        recipe=recipe or Recipe(),
        source="s",
        source_fingerprint=fingerprint,
        samples=None,
    )


def loop_over(
    registry: Registry, state: FleetState, fake: FakeFleet, nodes: Nodes | None = None
) -> ReconcileLoop:
    return ReconcileLoop(
        registry,
        nodes or Nodes(OLD),
        state,
        fake,
        {"store_url": "u"},
        resync_s=60,
        withdraw_after_s=0,
    )


def ready(version: int, generation: str, name: str = "r") -> fleet.ReplicaReport:
    return fleet.ReplicaReport(
        replica_id=name,
        model_name="m",
        model_version=version,
        state=fleet.REPLICA_STATE_READY,
        device_facts_json=json.dumps({"generation": generation}).encode(),
    )


async def until(state: FleetState, wanted: dict[int, str]) -> None:
    """Wait for states of deployments; a snapshot has those of replicas, which these tests lack."""
    async with asyncio.timeout(LIMIT_S):
        async for _ in state.watch():
            if {m.version: m.state for m in state.models()} == wanted:
                return


async def until_all_are(state: FleetState, wanted: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for _ in state.watch():
            if all(model.state == wanted for model in state.models()):
                return


async def until_model(state: FleetState, is_so: Callable[[fleet.ServedModel], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for _ in state.watch():
            if any(is_so(model) for model in state.models()):
                return
