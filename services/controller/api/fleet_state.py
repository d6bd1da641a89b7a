"""What the fleet looks like now: models wanted, replicas attached, and who watches.

One object, one event loop, no I/O. Every change makes a new revision and wakes watchers;
a slow watcher gets the newest state, never a backlog.
"""

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from services.contracts.hardware.facts import generation_named
from services.contracts.text.words import counted
from services.controller.api.takeover import answering_versions, as_answering
from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.deployments import STARTING
from services.controller.interfaces import DeploymentKey
from services.pb import fleet_v1_pb2 as fleet

_WORDS = {
    fleet.REPLICA_STATE_READY: "ready",
    fleet.REPLICA_STATE_LOADING: "loading",
    fleet.REPLICA_STATE_FAILED: "failed",
}


def generation_of(report: fleet.ReplicaReport) -> str:
    """The generation of the device that a replica runs on; "" before it knows."""
    return generation_named(report.device_facts_json)


@dataclass
class AttachedReplica:
    """One open Attach stream.

    Attributes:
        report: the last one of the replica.
        commands: sent down the stream in order; None ends it.
    """

    report: fleet.ReplicaReport
    commands: asyncio.Queue[fleet.ReplicaCommand | None] = field(default_factory=asyncio.Queue)


class FleetState:
    """The controller's only memory; all of it can be rebuilt from store and streams."""

    def __init__(self, store_url: str, epoch: int | None = None) -> None:
        """`epoch` differs from that of the process before; None draws it."""
        self._store_url = store_url
        # Not the process id: in a container that is always 1.
        self._epoch = secrets.randbits(64) if epoch is None else epoch
        self._revision = 0
        self._models: dict[tuple[str, int], fleet.ServedModel] = {}
        self._replicas: dict[str, AttachedReplica] = {}
        self._unseen: dict[str, AttachedReplica] = {}
        self._engines: dict[tuple[str, int], fleet.EnginesChanged] = {}
        self._metrics_addresses: list[str] = []
        self._builds: list[fleet.FleetBuild] = []
        self._planned: Collection[tuple[str, int]] | None = None
        self._standby: fleet.Standby | None = None
        self._changed = asyncio.Event()
        self._looked = asyncio.Event()
        self._is_read = False
        self._fault = ""
        self._last_fault = ""

    @property
    def revision(self) -> int:
        """Number of changes so far."""
        return self._revision

    def snapshot(self) -> fleet.FleetSnapshot:
        """Everything a gateway or a person needs, at this revision."""
        return fleet.FleetSnapshot(
            revision=self._revision,
            models=self._as_they_serve(),
            replicas=[replica.report for replica in self._replicas.values()],
            store_url=self._store_url,
            epoch=self._epoch,
            metrics_addresses=self._metrics_addresses,
            builds=self._builds,
            unseen=[replica.report for replica in self._unseen.values()],
            fault=self._last_fault,
            standby=self._standby,
        )

    async def watch(self) -> AsyncGenerator[fleet.FleetSnapshot]:
        """Yield the state now, and again after each change."""
        while True:
            # Before the state is read: a change while the caller is busy sets this very event.
            changed = self._changed
            yield self.snapshot()
            await changed.wait()

    def note_look(self, fault: str = "", *, is_read: bool = False) -> None:
        """Take that a look at store and fleet ended; with a fault, that it failed.

        Args:
            fault: for people.
            is_read: the models are known all the same.
        """
        if not self._is_read:
            self._is_read = is_read or not fault
            self._fault = "" if is_read else fault
        self._looked.set()
        if fault != self._last_fault:
            self._last_fault = fault
            self._mark_changed()

    async def looked(self) -> str:
        """Wait for the end of a look; "" once one succeeded, else the fault of the last.

        Before one succeeded this knows no model, which does not mean that there is none.
        """
        await self._looked.wait()
        return self._fault

    def set_model(self, model: fleet.ServedModel) -> None:
        """Add or update a model version; an equal one is no change."""
        key = (model.name, model.version)
        if self._models.get(key) != model:
            self._models[key] = model
            self._mark_changed()

    def remove_model(self, name: str, version: int) -> None:
        """Forget a model version that is no longer served."""
        self._engines.pop((name, version), None)
        if self._models.pop((name, version), None) is not None:
            self._mark_changed()

    def set_metrics_addresses(self, addresses: list[str]) -> None:
        """Set where the nodes' metrics agents are; the same again is no change."""
        if self._metrics_addresses != addresses:
            self._metrics_addresses = addresses
            self._mark_changed()

    def set_builds(
        self, builds: list[fleet.FleetBuild], planned: Collection[tuple[str, int]] | None = None
    ) -> None:
        """Set what is built and what waits for its turn; the same again is no change.

        Args:
            builds: of all versions.
            planned: versions, by name and number, of which there is no other build; None where
                what is built is not known here.
        """
        if (self._builds, self._planned) != (builds, planned):
            self._builds = builds
            self._planned = planned
            self._mark_changed()

    def answering(self) -> dict[str, int]:
        """The older version that answers for a model still; see `answering_versions`."""
        reports = (replica.report for replica in self._replicas.values())
        return answering_versions(self._models.values(), reports, self._is_coming)

    def _is_coming(self, name: str, version: int, generation: str) -> bool:
        if self._planned is None or self._standby:
            return False
        wanted = name, version, generation
        found = ((b.model_name, b.model_version, b.generation) for b in self._builds)
        return (name, version) not in self._planned or wanted in found

    def set_standby(self, standby: fleet.Standby | None) -> None:
        """Set which other controller builds; None while this one does."""
        if self._standby != standby:
            self._standby = standby
            self._mark_changed()

    def models(self) -> list[fleet.ServedModel]:
        """The model versions that are wanted."""
        return list(self._models.values())

    def attach(self, report: fleet.ReplicaReport) -> AttachedReplica:
        """Register a replica by its first report, and announce the engines of its model.

        There may be other ones than those it began with: its stream can take seconds while it
        loads, and an earlier controller may have ended before it announced one. Before the first
        look at the store none are known; that look announces them.
        """
        replica = AttachedReplica(report=report)
        if known := self._engines.get((report.model_name, report.model_version)):
            replica.commands.put_nowait(fleet.ReplicaCommand(engines_changed=known))
        self._replicas[report.replica_id] = replica
        self._unseen.pop(report.replica_id, None)
        self._mark_changed()
        return replica

    def update(self, replica: AttachedReplica, report: fleet.ReplicaReport) -> None:
        """Take a later report of an attached replica."""
        if replica.report != report:
            replica.report = report
            self._mark_changed()

    def detach(self, replica: AttachedReplica) -> None:
        """Withdraw a replica whose stream ended; one that attached anew stays.

        One that was ready may serve on behind a connection that is cut. Gateways that are
        connected to it may keep it until `forget`.
        """
        replica_id = replica.report.replica_id
        if self._replicas.get(replica_id) is replica:
            del self._replicas[replica_id]
            if replica.report.state == fleet.REPLICA_STATE_READY:
                replica.report = _lost(replica.report, self._revision)
                self._unseen[replica_id] = replica
            self._mark_changed()

    def forget(self, replica: AttachedReplica) -> None:
        """Withdraw a replica for good that was detached and has not attached again."""
        replica_id = replica.report.replica_id
        if self._unseen.get(replica_id) is replica:
            del self._unseen[replica_id]
            self._mark_changed()

    def has_other_engines(self, name: str, version: int, keys: Sequence[str]) -> bool:
        """Whether documents of a version's engines are known, and others than these.

        Args:
            name: of the model.
            version: of the model.
            keys: of the documents in the store; their order counts.

        Returns:
            False as well for a version whose documents were never read.
        """
        known = self._engines.get((name, version))
        return known is not None and list(known.document_keys) != list(keys)

    def set_engines(self, name: str, version: int, master_digest: str, keys: Iterable[str]) -> int:
        """Take what is published of a model version's engines, and announce what is new.

        Args:
            name: of the model.
            version: of the model.
            master_digest: of that version.
            keys: of all documents, so that no replica has to list the store.

        Returns:
            To how many replicas it was announced; 0 when it is the same as before.
        """
        engines = fleet.EnginesChanged(master_digest=master_digest, document_keys=keys)
        if self._engines.get((name, version)) == engines:
            return 0
        self._engines[name, version] = engines
        attached = [
            replica
            for replica in self._replicas.values()
            if (replica.report.model_name, replica.report.model_version) == (name, version)
        ]
        for replica in attached:
            replica.commands.put_nowait(fleet.ReplicaCommand(engines_changed=engines))
        return len(attached)

    def num_ready(self, name: str, version: int, generation: str) -> int:
        """Number of ready replicas of a model version on nodes of a generation.

        Args:
            name: of the model.
            version: of the model.
            generation: text form, as "cuda-sm90".
        """
        return sum(
            replica.report.state == fleet.REPLICA_STATE_READY
            and (replica.report.model_name, replica.report.model_version) == (name, version)
            and generation_of(replica.report) == generation
            for replica in self._replicas.values()
        )

    def num_attached(self, name: str, version: int, generation: str) -> int:
        """Number of attached replicas that have not failed; see `num_ready` for the arguments.

        A replica that still loads does not know its generation; it counts for each generation.
        """
        return sum(
            replica.report.state != fleet.REPLICA_STATE_FAILED
            and (replica.report.model_name, replica.report.model_version) == (name, version)
            and generation_of(replica.report) in ("", generation)
            for replica in self._replicas.values()
        )

    def ready_keys(self) -> list[DeploymentKey]:
        """What replicas that take requests serve, and where; each once, sorted.

        With those that are unseen: gateways go on with them, so their versions must stay known.
        """
        ready = (r.report for r in (*self._replicas.values(), *self._unseen.values()))
        return sorted(
            {
                DeploymentKey(report.model_name, report.model_version, generation_of(report))
                for report in ready
                if report.state == fleet.REPLICA_STATE_READY
            }
        )

    def _as_they_serve(self) -> Iterator[fleet.ServedModel]:
        """Versions whose application runs are LOADING while none of their replicas is ready."""
        counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for replica in self._unseen.values():
            counts[_subject(replica.report)]["lost"] += 1
        for replica in self._replicas.values():
            counts[_subject(replica.report)][_WORDS.get(replica.report.state, "")] += 1
        answering = self.answering()
        for model in self._models.values():
            found = counts[model.name, model.version]
            is_running = model.state == DeploymentState.READY and not model.is_unloaded
            is_running &= not model.external_json  # it has no replicas
            shown = _loading(model, found) if is_running and not found["ready"] else model
            number = answering.get(model.name)
            yield shown if number is None else as_answering(shown, number)

    def _mark_changed(self) -> None:
        self._revision += 1
        # A new event, and no clear(): a watcher that is not back yet would miss the change.
        changed = self._changed
        self._changed = asyncio.Event()
        changed.set()


def _subject(report: fleet.ReplicaReport) -> tuple[str, int]:
    return report.model_name, report.model_version


def _lost(report: fleet.ReplicaReport, revision: int) -> fleet.ReplicaReport:
    # A copy, as snapshots hold the report. MergeFrom takes over the fields that are set there, and
    # `lost_revision` is not.
    lost = fleet.ReplicaReport(lost_revision=revision)
    lost.MergeFrom(report)
    return lost


def _loading(model: fleet.ServedModel, replicas: Counter[str]) -> fleet.ServedModel:
    """The version with what became of its replicas as the reason."""
    states = ((replicas[state], state) for state in ("lost", "loading", "failed"))
    words = (f"{counted(num, 'replica')} {state}" for num, state in states if num)
    shown = fleet.ServedModel()
    shown.CopyFrom(model)
    shown.state = DeploymentState.LOADING
    shown.reason = ", ".join(words) or STARTING
    return shown
