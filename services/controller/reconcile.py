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
# Serve tells nobody when an application runs; its own client asks as often.
_STATUS_PERIOD_S = 0.1
_Key = tuple[str, int]


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

    versions: dict[_Key, ModelVersion]
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
        self._deploys: dict[_Key, asyncio.Task[None]] = {}
        self._retirements: dict[_Key, asyncio.Task[None]] = {}
        self._announced: dict[str, frozenset[tuple[str, str]]] = {}

    async def run(self) -> None:
        """Reconcile when kicked and at each resync, until cancelled."""
        try:
            while True:
                self._kicked.clear()
                await self._try_reconcile()
                # Not wait_for: on Python 3.11 it can swallow a cancel that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._resync_s):
                        await self._kicked.wait()
        finally:
            for task in (*self._deploys.values(), *self._retirements.values()):
                task.cancel()

    async def _try_reconcile(self) -> None:
        try:
            await self.reconcile_now()
        except Exception:
            # Whatever it is, Ray's errors included: a loop that ended would do so in silence.
            logger.exception("reconcile pass failed; the next one tries again")

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
        observed = _Observed({}, {})
        for name in self._source.model_names():
            try:
                version = self._source.model_version(name)
                engines = self._source.engines(version.master.digest)
            except SmeltError as error:
                # A newer compiler's document must not keep the other models from serving.
                logger.error("model '%s' is left as it is: %s", name, error)
                continue
            observed.versions[version.name, version.version] = version
            observed.engine_marks[version.master.digest] = frozenset(
                (engine.digest, engine.proof.created_at) for engine in engines
            )
        return observed

    def _start_deploy(self, key: _Key, version: ModelVersion) -> None:
        self._state.set_model(served_model(version, LOADING, "replicas are starting"))
        self._deploys[key] = asyncio.create_task(self._deploy(key, version))

    async def _deploy(self, key: _Key, version: ModelVersion) -> None:
        args = self._replica_args | {
            "model": version.name,
            "version": version.version,
            "num_replicas": version.recipe.num_replicas,
        }
        try:
            await asyncio.to_thread(self._replicas.deploy, *key, args)
            # A thread for each question, not for the wait: a model may load for minutes, and
            # a few such waits would hold every thread that this process has.
            while not await asyncio.to_thread(self._replicas.is_running, *key):
                if key in self._retirements:
                    return
                await asyncio.sleep(_STATUS_PERIOD_S)
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
        self._announced |= observed.engine_marks

    def _retire_old(self, observed: _Observed) -> None:
        """Remove versions that a newer one with ready replicas has replaced."""
        newest = dict(observed.versions.keys())
        for model in self._state.models():
            key = (model.name, model.version)
            replaced_by = newest.get(model.name, model.version)
            is_replaced = model.version < replaced_by and self._state.num_ready(
                model.name, replaced_by
            )
            if is_replaced and key not in self._retirements:
                self._retirements[key] = asyncio.create_task(self._retire(key))

    async def _retire(self, key: _Key) -> None:
        try:
            if deploy := self._deploys.get(key):
                await deploy
            await asyncio.to_thread(self._replicas.remove, *key)
        except Exception:
            logger.exception("retiring %s version %d failed; the next pass tries again", *key)
        else:
            self._deploys.pop(key, None)
            self._state.remove_model(*key)
            logger.info("retired %s version %d", *key)
        finally:
            del self._retirements[key]


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
