"""The reconcile loop: what the store says should serve, against what serves.

Level-triggered: each pass reads the whole store and the whole fleet, so a lost event
costs one resync period and nothing else. State lives in the store only.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Protocol

from services.contracts.errors import SmeltError
from services.contracts.manifest import ModelVersion, PublishedEngine
from services.controller.fleet_state import FleetState
from services.controller.replica_fleet import ReplicaFleet
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)

READY = "READY"
LOADING = "LOADING"
UNAVAILABLE = "UNAVAILABLE"


class ModelSource(Protocol):
    """What the loop reads; `services.contracts.registry.Registry` has it."""

    def model_names(self) -> list[str]:
        """Names of all models."""
        ...

    def model_version(self, name: str, version: int | None = None) -> ModelVersion:
        """One version, the newest by default."""
        ...

    def engines(self, master_digest: str | None = None) -> list[PublishedEngine]:
        """Published engines with their newest proof."""
        ...


@dataclass(frozen=True)
class _Observed:
    """The store at one moment: newest version of each model, and a mark of its engines."""

    versions: dict[tuple[str, int], ModelVersion]
    engine_marks: dict[str, frozenset[tuple[str, str]]]


class ReconcileLoop:
    """Deploys the newest version of each model, and announces engines to its replicas."""

    def __init__(
        self,
        source: ModelSource,
        state: FleetState,
        replicas: ReplicaFleet,
        replica_args: dict[str, Any],
        resync_s: float,
    ) -> None:
        self._source = source
        self._state = state
        self._replicas = replicas
        self._replica_args = replica_args
        self._resync_s = resync_s
        self._kicked = asyncio.Event()
        self._pass_lock = asyncio.Lock()
        self._deploys: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._retirements: set[asyncio.Task[None]] = set()
        self._announced: dict[str, frozenset[tuple[str, str]]] = {}

    async def run(self) -> None:
        """Reconcile when kicked and at each resync, until cancelled."""
        while True:
            self._kicked.clear()
            try:
                await self.reconcile_now()
            except SmeltError:
                logger.exception("reconcile pass failed; the next one tries again")
            # Not wait_for: on Python 3.11 it can swallow a cancel that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._resync_s):
                    await self._kicked.wait()

    async def reconcile_now(self) -> None:
        """One pass over store and fleet. Deployments go on in the background."""
        async with self._pass_lock:
            observed = await asyncio.to_thread(self._observe)
            addresses = await asyncio.to_thread(self._replicas.metrics_addresses)
            self._state.set_metrics_addresses(addresses)
            for key, version in observed.versions.items():
                if key not in self._deploys:
                    self._start_deploy(key, version)
            self._announce_changes(observed)
            self._retire_old(observed)

    def _observe(self) -> _Observed:
        found = [self._source.model_version(name) for name in self._source.model_names()]
        marks = {
            version.master.digest: frozenset(
                (engine.digest, engine.proof.created_at)
                for engine in self._source.engines(version.master.digest)
            )
            for version in found
        }
        return _Observed({(v.name, v.version): v for v in found}, marks)

    def _start_deploy(self, key: tuple[str, int], version: ModelVersion) -> None:
        self._state.set_model(served_model(version, LOADING, "replicas are starting"))
        self._deploys[key] = asyncio.create_task(self._deploy(key, version))

    async def _deploy(self, key: tuple[str, int], version: ModelVersion) -> None:
        args = self._replica_args | {
            "model": version.name,
            "version": version.version,
            "num_replicas": version.recipe.num_replicas,
        }
        try:
            await asyncio.to_thread(self._replicas.deploy, version.name, version.version, args)
        except Exception as error:
            # Whatever Serve raises: the model must not look as if it were loading for ever,
            # and the next resync tries again.
            logger.exception("deploy of %s version %d failed", version.name, version.version)
            self._state.set_model(served_model(version, UNAVAILABLE, str(error)))
            self._deploys.pop(key)
            return
        self._state.set_model(served_model(version, READY, ""))
        logger.info("serving %s version %d", version.name, version.version)
        self._kicked.set()

    def _announce_changes(self, observed: _Observed) -> None:
        for (name, number), version in observed.versions.items():
            digest = version.master.digest
            marks = observed.engine_marks[digest]
            if self._announced.get(digest, marks) != marks:
                told = self._state.announce_engines(name, number, digest)
                logger.info("engines of %s version %d changed: %d told", name, number, told)
        self._announced = observed.engine_marks

    def _retire_old(self, observed: _Observed) -> None:
        """Remove versions that a newer one with ready replicas has replaced."""
        newest = dict(observed.versions.keys())
        for name, number in list(self._deploys):
            replaced_by = newest.get(name, number)
            if number < replaced_by and self._state.num_ready(name, replaced_by):
                retirement = asyncio.create_task(self._retire(name, number))
                self._retirements.add(retirement)
                retirement.add_done_callback(self._retirements.discard)

    async def _retire(self, name: str, number: int) -> None:
        await self._deploys.pop((name, number))
        await asyncio.to_thread(self._replicas.remove, name, number)
        self._state.remove_model(name, number)
        logger.info("retired %s version %d", name, number)


def served_model(version: ModelVersion, state: str, reason: str) -> fleet.ServedModel:
    """A model version as the control plane sends it."""
    return fleet.ServedModel(
        name=version.name,
        version=version.version,
        model_version_json=version.canonical_json(),
        state=state,
        reason=reason,
        num_replicas_wanted=version.recipe.num_replicas,
    )
