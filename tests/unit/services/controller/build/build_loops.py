"""Build loops over a real store, and what they recorded."""

import threading
from collections import Counter
from typing import Any

from services.contracts.errors import NotReadyError
from services.contracts.events import EventKind
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import NodePool
from services.controller.platform.cluster_platform import CombinedNodes
from tests.unit.services.controller import build_world as world

AT_ONCE = BuildPace(
    nodes_gone_after_s=0.0, retry=RetryPolicy(first_delay_s=0.0, first_timing_s=0.0)
)


class Nodes:
    """A NodeSource; None cannot be read."""

    def __init__(self, *pools: NodePool) -> None:
        self.known: list[NodePool] | None = list(pools)

    def pools(self) -> list[NodePool]:
        """What is known."""
        if self.known is None:
            raise NotReadyError("Ray is away")
        return self.known


class HangingNodes(Nodes):
    """Ray that answers only when it is let go."""

    def __init__(self, *pools: NodePool) -> None:
        super().__init__(*pools)
        self.let_go = threading.Event()

    def pools(self) -> list[NodePool]:
        """What is known, late."""
        self.let_go.wait()
        return super().pools()


def loop_on(
    registry: Registry, worker: world.InstantWorker, nodes: Nodes | None = None, **given: Any
) -> BuildLoop:
    """A loop over one node, unless others are given; it retries at once."""
    source = CombinedNodes([nodes or Nodes(world.pool())])
    return BuildLoop(registry, source, worker, FleetState("", 0), **{"pace": AT_ONCE, **given})


async def settled(loop: BuildLoop, worker: world.InstantWorker) -> None:
    """Pass until nothing runs any more."""
    await loop.sync()
    while worker.tasks:
        worker.work()
        await loop.sync()


def recorded(registry: Registry) -> Counter[EventKind]:
    """How many events of each kind."""
    return Counter(event.kind for _, event in registry.last_events(1000))
