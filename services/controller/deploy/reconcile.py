"""The reconcile loop: what should serve where, against what serves.

Wanted is the newest version of each model on each generation that has nodes, and beside it the
versions that have a share of the requests. Level-triggered:
each sync reads the whole store, all nodes and what is deployed, so a lost event costs one
resync period and nothing else. State is in the store, and with Ray Serve.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from services.contracts.errors import NotReadyError, SmeltError
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.replica_number import least_replicas
from services.contracts.registry.registry import Registry
from services.contracts.selection.gpu_share import GpuShare
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.deploy.fleet_threads import ASK_TIMEOUT_S, SUBMIT_TIMEOUT_S, FleetThreads
from services.controller.deploy.generations import Generations
from services.controller.deploy.gpu_shares import GpuShares
from services.controller.deploy.observed import Observed, StoreView
from services.controller.deploy.on_demand import OnDemand
from services.controller.deploy.outgrown import OutgrownShares
from services.controller.external.external_watch import ExternalWatch
from services.controller.interfaces import DeploymentKey, NodeSource, ReplicaFleet
from services.controller.room import Room
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.recorder import NullRecorder, Recorder

logger = logging.getLogger(__name__)

_OUTGROWN = "%s version %d on %s: by its proofs it needs more of a GPU; it gets %g of one"


class ReconcileLoop:
    """Deploys the newest version of each model, and announces engines to its replicas.

    Attributes:
        deployments: those begun, or found, and not yet withdrawn.
        on_demand: decides which on-demand models are there.
        externals: checks external models.
        last_sync_s: when the last sync ended, with or without a fault, in seconds of the clock.
    """

    def __init__(
        self,
        source: Registry,
        nodes: NodeSource,
        state: FleetState,
        replicas: ReplicaFleet,
        replica_args: dict[str, Any],
        *,
        resync_s: float,
        withdraw_after_s: float = 10.0,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        ask_timeout_s: float = ASK_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        externals: ExternalWatch | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: models and engines.
            nodes: which generations there are.
            state: shows what is served.
            replicas: places them.
            replica_args: settings that all replicas share.
            resync_s: how often to look without an event.
            withdraw_after_s: how long a generation may be away before what served there is
                withdrawn: a node that restarts is soon back.
            submit_timeout_s: how long Ray Serve may take to accept an application.
            ask_timeout_s: how long Ray may take to answer a question.
            clock: monotonic seconds.
            externals: checks external models; None has one without tokens.
            recorder: of CONTROLLER_METRICS; None records nothing.
        """
        self._store = StoreView(source)
        self.externals = externals or ExternalWatch(state)
        self._shares = GpuShares(self._store.engines)
        self._nodes = nodes
        self._state = state
        self._replicas = replicas
        self._replica_args = replica_args
        self._resync_s = resync_s
        self._clock = clock
        self._enqueued = asyncio.Event()
        self._sync_lock = asyncio.Lock()
        self._observed = Observed()
        self._threads = FleetThreads(submit_timeout_s, ask_timeout_s)
        self.deployments = Deployments(
            replicas,
            self._threads,
            on_change=self._note_change,
            on_success=self.enqueue,
            clock=clock,
        )
        self._outgrown = OutgrownShares(self.deployments, self._rooms)
        self.on_demand = self._new_on_demand(recorder or NullRecorder())
        # As the last sync found them.
        self._placed: list[ModelVersion] = []
        self._wanted_shares: Mapping[DeploymentKey, GpuShare] = {}
        self._generations = Generations(withdraw_after_s, clock)
        self.last_sync_s = clock()

    def _new_on_demand(self, recorder: Recorder) -> OnDemand:
        return OnDemand(
            self.deployments,
            self._rooms,
            lambda key: self._state.num_attached(*key) > 0,
            self.enqueue,
            recorder=recorder,
            clock=self._clock,
        )

    async def _rooms(self) -> Mapping[str, Room]:
        return await self._threads.ask(self._replicas.rooms)

    def enqueue(self) -> None:
        """Enqueue a sync; call it in the event loop."""
        self._enqueued.set()

    async def run(self) -> None:
        """Reconcile when enqueued and at each resync, until cancelled."""
        beside = self.on_demand.run() if self._replicas.is_placing else self._watch_attached()
        task = asyncio.create_task(beside)
        try:
            while True:
                # Before the sync: what is enqueued while it runs has another one follow.
                self._enqueued.clear()
                await self._try_reconcile()
                # Not wait_for: on Python 3.11 it can swallow a cancel that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._resync_s):
                        await self._enqueued.wait()
        finally:
            task.cancel()
            self.deployments.cancel()
            self._threads.close()
            await self.externals.close()

    def note_use(self, model: str, seconds_ago: float = 0.0) -> None:
        """Take when a model was used; on demand, it is deployed by what the last sync saw."""
        self.on_demand.note_use(model, seconds_ago)
        for version in self._placed:
            if version.name == model and version.recipe.is_on_demand:
                self._deploy_missing(version, frozenset())
                self._show_model(model)

    async def _watch_attached(self) -> None:
        """Look when replicas that a RayService places come or go."""
        known: list[DeploymentKey] = []
        async for _ in self._state.watch():
            if known != (known := self._state.ready_keys()):
                self.enqueue()

    async def _try_reconcile(self) -> None:
        try:
            await self.reconcile()
        except SmeltError as error:
            logger.warning("reconcile sync failed, the next one tries again: %s", error)
        except Exception:
            # Whatever it is, Ray's errors included: a loop that ended would do so in silence.
            logger.exception("reconcile sync failed; the next one tries again")

    async def reconcile_now(self) -> None:
        """One sync by request: what failed need not wait for its time.

        Deployments go on in the background.
        """
        self.deployments.end_pauses()
        await self.reconcile()

    async def reconcile(self) -> None:
        """One sync of store, nodes and fleet; what failed is tried again when its pause is over.

        Raises whatever the sync raises, once it is shown in the fleet's state.
        """
        async with self._sync_lock:
            try:
                await self._sync()
                self._state.note_look(self.externals.fault, is_read=True)
            except Exception as error:
                self._state.note_look(str(error) or repr(error))
                raise
            finally:
                if not self._threads.is_exhausted:  # else it looked at nothing
                    self.last_sync_s = self._clock()

    async def _sync(self) -> None:
        present = await self._threads.ask(self._replicas.deployed)
        if self._replicas.is_placing:
            self.deployments.compare(present)
        else:
            self.deployments.show_only(present)
        observed = await asyncio.to_thread(self._store.look, self.deployments.all())
        if not self._replicas.is_placing:
            # What another fleet over this store unloaded is not ours to withdraw.
            observed.unloaded.clear()
        self._observed = observed
        self._state.set_metrics_addresses(await self._threads.ask(self._replicas.metrics_addresses))
        # Before anything is deployed: a replica gets the engines that are known when it attaches.
        self._announce_changes(observed)
        if self._replicas.is_placing:
            await self._place(observed)
        # After replicas: Ray Serve may be slow to take the applications among them.
        await self.externals.follow(observed.externals, observed.unread)
        self._show()

    async def _place(self, observed: Observed) -> None:
        """Begin to deploy what is missing, and to withdraw what is not needed any more."""
        try:
            pools = await self._threads.ask(self._nodes.pools)
        except NotReadyError as error:
            logger.warning("nodes are not known, nothing is deployed or withdrawn: %s", error)
            return
        self._generations.look(pools, self.deployments.all())
        self._wanted_shares = await asyncio.to_thread(self._shares.of, observed.wanted(), pools)
        outgrown = await self._outgrown.find(self._wanted_shares)
        self.on_demand.follow(observed.selecting())
        self._placed = observed.wanted()
        for version in self._placed:
            self._deploy_missing(version, outgrown)
        answering = self._state.answering()
        for key in self.deployments.all():
            if self._may_go(key, observed, answering.get(key.name)):
                self.deployments.withdraw(key)

    def _deploy_missing(self, version: ModelVersion, outgrown: Collection[DeploymentKey]) -> None:
        """Begin to deploy a version wherever it is missing, or has outgrown its share."""
        for generation in self._generations.present():
            key = DeploymentKey(version.name, version.version, generation)
            share = self._wanted_shares.get(key)
            # One at a time: what starts may take the room of the next.
            is_outgrown = key in outgrown and not self.deployments.is_loading_on(generation)
            if is_outgrown and share:
                logger.warning(_OUTGROWN, *key, share.asked)
            if is_outgrown or self._is_missing(key):
                asked = {"gpu_share": share.asked} if share else {}  # none on CPUs
                self.deployments.start(key, version, self._replica_args | asked)
                self.on_demand.note_start(key)

    def _is_missing(self, key: DeploymentKey) -> bool:
        if key not in self.deployments:
            return self.on_demand.is_due(key)
        num_attached = self._state.num_attached(*key)
        return self.deployments.is_due_again(key) or self.deployments.is_orphaned(key, num_attached)

    def _announce_changes(self, observed: Observed) -> None:
        for version in observed.selecting():
            digest = version.master.digest
            which = (version.name, version.version)
            if self._state.has_other_engines(*which, observed.engine_keys[digest]):
                # What could not serve without an engine may do so now.
                self.deployments.end_pauses(which)
            num_replicas = self._state.set_engines(*which, digest, observed.engine_keys[digest])
            if num_replicas:
                logger.info(
                    "engines of %s version %d: announced to %d replicas",
                    version.name,
                    version.version,
                    num_replicas,
                )

    def _may_go(self, key: DeploymentKey, observed: Observed, answering: int | None) -> bool:
        """Whether a deployment is not wanted, and requests have another one.

        Args:
            key: of the deployment.
            observed: what is wanted.
            answering: the older version of its model that answers still.
        """
        if key.name not in observed.names or key.name in observed.unloaded:
            return True
        if key.generation not in self._generations.present():
            return True
        newest = observed.versions.get(key.name)
        if newest is None or key.version in (newest.version, answering):
            return False
        if key[:2] in observed.weights:
            return False
        # The newest must serve where this one does, which is older, or newer and was removed.
        if self._state.num_ready(key.name, newest.version, key.generation) > 0:
            return True
        # Or it never would: it has no room beside this one, and has it in its place.
        waiting = DeploymentKey(key.name, newest.version, key.generation)
        return self.deployments.makes_room(key, waiting)

    def _show(self) -> None:
        """Publish the state of each version that is wanted or still there."""
        there = (model.name for model in self._state.models() if not model.external_json)
        for name in {*self._observed.names, *there}:
            self._show_model(name)

    def _note_change(self, name: str) -> None:
        self.on_demand.note_change(name)
        self._show_model(name)

    def _show_model(self, name: str) -> None:
        """Publish one model's versions; with hundreds of models each change is of one of them."""
        observed = self._observed
        newest = observed.versions.get(name)
        there = {key[:2] for key in self.deployments.all()} | observed.weights.keys()
        shown = {
            version.version: version
            for key, version in observed.others.items()
            if key[0] == name and key in there
        }
        if newest is not None:
            shown[newest.version] = newest
        for version in shown.values():
            is_unloaded = version.name in observed.unloaded
            served = self._served(version, is_unloaded=is_unloaded)
            served.weight = observed.weights.get((version.name, version.version), 0.0)
            self._state.set_model(served)
        for model in self._state.models():
            if model.name == name and model.version not in shown:
                self._state.remove_model(model.name, model.version)

    def _served(self, version: ModelVersion, *, is_unloaded: bool) -> fleet.ServedModel:
        state, reason = self.deployments.state(version.name, version.version)
        wanted = self._replicas.num_wanted(version.name, version.version)
        standby = self.on_demand.standby_words(version.name, version.version)
        if is_unloaded:
            reason = "unloaded"
            wanted = 0
        elif standby and self._generations.present():
            state = DeploymentState.STANDBY
            reason = standby
            wanted = 0
        elif wanted is None:
            key = version.name, version.version
            num_places = sum(deployed[:2] == key for deployed in self.deployments.all())
            wanted = least_replicas(version.recipe.num_replicas) * max(num_places, 1)
        return fleet.ServedModel(
            name=version.name,
            version=version.version,
            model_version_json=version.canonical_json(),
            state=state,
            reason=reason,
            num_replicas_wanted=wanted,
            is_unloaded=is_unloaded,
            unplaced=self.deployments.unplaced(version.name, version.version),
        )
