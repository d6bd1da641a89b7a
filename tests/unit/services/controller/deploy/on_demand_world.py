"""A reconcile loop over one GPU whose shares are counted, and the on-demand models on it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.contracts.model.recipe import Recipe, Residency
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.reconcile import ReconcileLoop
from services.controller.interfaces import DeploymentKey
from services.controller.room import Held, Room
from services.telemetry.catalog import CONTROLLER_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.unit.services.controller.deploy.reconcile_world import (
    LIMIT_S,
    NODE,
    OLD,
    FakeFleet,
    Nodes,
    add,
)


class OneGpu(FakeFleet):
    """Replicas run while their shares fit on one GPU, first come first.

    Attributes:
        extras: replicas of a deployment beyond its first.
        num_looks: how often its room was asked for.
        unseen: models for which Ray shows that it seeks a place, whatever they have.
        may_remove: cleared while what leaves is not gone yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.extras: dict[DeploymentKey, int] = {}
        self.num_looks = 0
        self.unseen: set[str] = set()
        self.may_remove = threading.Event()
        self.may_remove.set()

    def remove(self, key: DeploymentKey) -> None:
        self.may_remove.wait(LIMIT_S)
        super().remove(key)

    def placed(self) -> list[DeploymentKey]:
        """Those that have their share."""
        found: list[DeploymentKey] = []
        free = 1.0 + 1e-6 - sum(num * self.shares[key] for key, num in self.extras.items())
        for key in self.present:
            if self.shares[key] <= free:
                free -= self.shares[key]
                found.append(key)
        return found

    def is_running(self, key: DeploymentKey) -> bool:
        return super().is_running(key) and key in self.placed()

    def rooms(self) -> dict[str, Room]:
        self.num_looks += 1
        placed = [key for key in self.placed() if key.name not in self.unseen]
        held = {
            key: Held(
                amounts={"GPU": self.shares[key]},
                nodes=(NODE,) * (1 + self.extras.get(key, 0)) if key in placed else (),
            )
            for key in self.present
        }
        pending = [{"GPU": self.shares[key]} for key in self.present if key.name in self.unseen]
        total = {NODE: {"GPU": 1.0}}
        return {OLD: Room(generation=OLD, total=total, free={NODE: {}}, held=held, pending=pending)}


class World:
    """A loop over one GPU, and its time."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.registry = Registry(open_store(str(folder / "store")), folder / "cache")
        self.fake = OneGpu()
        self.collectors = CollectorRegistry()
        self.recorder = PrometheusRecorder(CONTROLLER_METRICS, self.collectors)
        self.restart()

    def restart(self) -> None:
        """Another controller, over what is deployed."""
        self.state = FleetState("u", 1)
        self.loop = ReconcileLoop(
            self.registry,
            Nodes(OLD),
            self.state,
            self.fake,
            {},
            resync_s=60,
            withdraw_after_s=0,
            clock=lambda: self.now_s,
            recorder=self.recorder,
        )

    async def add(self, name: str, share: float = 0.5, residency: str = "on-demand") -> None:
        """Publish the next version of a model, and look."""
        numbers = self.registry.versions(name) if name in self.registry.model_names() else []
        recipe = Recipe(gpu_share=share, residency=Residency(residency))
        add(self.registry, f"{name}-{len(numbers) + 1}", name, recipe)
        await self.sync()

    async def sync(self) -> None:
        """A look, and all that follows from it at this moment."""
        await self.loop.reconcile()
        await self.settle()

    async def settle(self) -> None:
        """Let room be made, and who leaves be gone."""
        await self.until(lambda: set(self.loop.deployments.all()) <= set(self.fake.present))
        await self.loop.on_demand.make_room()
        await self.loop.deployments.withdrawn()
        await self.until(
            lambda: (
                not any(
                    key in self.fake.placed() and found.state == "LOADING"
                    for key, found in self.loop.deployments.known().items()
                    if not self.fake.fault and key[:2] not in self.fake.starting
                )
            )
        )

    async def ask(self, name: str, seconds_ago: float = 0.0) -> None:
        """A request for a model is reported."""
        self.loop.note_use(name, seconds_ago)
        await self.settle()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what threads do."""
        async with asyncio.timeout(LIMIT_S):
            while not is_so():  # noqa: ASYNC110 - what threads do sets no event
                await asyncio.sleep(0.001)

    @property
    def states(self) -> dict[str, str]:
        """By model; with the version where it is not the first."""
        return {
            f"{m.name}{m.version if m.version > 1 else ''}": m.state for m in self.state.models()
        }

    def loaded(self) -> str:
        """Names of those that serve, in one word."""
        return "".join(sorted(name for name, state in self.states.items() if state == "READY"))

    def figure(self, name: str, **labels: str) -> float:
        return self.collectors.get_sample_value(name, {"version": "1"} | labels) or 0.0
