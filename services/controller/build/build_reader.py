"""Reads from the registry what the build policy looks at."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

from services.contracts.builds.build_plan import BuildPlan, RebuildRequest, TaskEnd, TaskStart
from services.contracts.builds.build_record import BuildRecord
from services.contracts.errors import SmeltError, StoreError
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import Generation
from services.contracts.model.manifest import ModelRemoval, ModelVersion, PublishedEngine
from services.contracts.registry.registry import Registry
from services.contracts.registry.serving import ServingChange
from services.contracts.registry.weights import VersionWeights
from services.contracts.selection.joint_run import JointRun
from services.contracts.text.moments import utc_now
from services.controller.build.build_policy import planning_names
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.build.key_status import (
    RetryPolicy,
    is_given_up,
    is_proven_on,
    is_to_be_proven_again,
)
from services.controller.build.retiming import timing_names
from services.controller.interfaces import NodePool
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)

_DocumentT = TypeVar("_DocumentT", TaskStart, TaskEnd, ModelRemoval)
# Of an end that cannot be read: an attempt that is over, so that attempts come to an end.
_LONG_AGO = "1970-01-01T00:00:00.000+00:00"


@dataclass(kw_only=True)
class _ModelRead:
    """What the store holds of one model, its wanted version first."""

    versions: list[ModelVersion] = field(default_factory=list)
    plans: dict[tuple[str, int], list[BuildPlan]] = field(default_factory=dict)
    requests: list[RebuildRequest] = field(default_factory=list)
    serving_changes: list[ServingChange] = field(default_factory=list)
    weight_changes: list[VersionWeights] = field(default_factory=list)
    engines: dict[str, PublishedEngine] = field(default_factory=dict)
    runs: dict[str, list[JointRun]] = field(default_factory=dict)
    records: dict[str, list[BuildRecord]] = field(default_factory=dict)


class _ExternalRead(NamedTuple):
    """The newest version of an external model, and what people asked."""

    model: ExternalModel
    serving_changes: list[ServingChange]
    weight_changes: list[VersionWeights]


class ViewReader:
    """Makes views; remembers only what need not be read again. Blocks.

    Attributes:
        moment: the store as the last view shows it.
    """

    def __init__(self, registry: Registry, policy: RetryPolicy, compiler: str) -> None:
        """Nothing is read yet.

        Args:
            registry: the store that is read.
            policy: when a failed build is tried again, and when it is quarantined.
            compiler: the launcher's; a plan of another one may be out of date.
        """
        self._registry = self.moment = registry
        self._policy = policy
        self._compiler = compiler
        # Records of keys that are attempted no more: those proven and those quarantined.
        self._settled: dict[str, list[BuildRecord]] = {}
        # Keys that were neither when they were read last.
        self._attempted: set[str] = set()
        # How many attempts at a key were seen, and when that was new: what builds has its own
        # clock, which may be hours off.
        self._num_seen: dict[str, int] = {}
        self._seen_at: dict[str, datetime] = {}
        self._marked_at: dict[tuple[str, str], datetime | None] = {}
        self._began_at: datetime | None = None
        # What could not be read of models and tasks, by what it is about: logged once.
        self._logged: dict[str, str] = {}

    def read(
        self,
        pools: Sequence[NodePool],
        task_names: Iterable[str],
        attached: Mapping[str, set[int]] | None = None,
    ) -> FleetView:
        """The store now, for these pools, with these tasks running; raises StoreError.

        A model of which a document cannot be read is left out, and the others are not.

        Args:
            pools: of nodes.
            task_names: of the tasks that run.
            attached: versions that replicas are there for, by model: they get what they lack
                although a newer one is wanted.
        """
        self.moment = self._registry.at_one_moment()
        models = list(self._models(attached or {}))
        externals = list(self._externals())
        read: list[tuple[str, _ModelRead | _ExternalRead]] = [
            *((each.versions[0].name, each) for each in models),
            *((each.model.name, each) for each in externals),
        ]
        view = FleetView(
            pools=pools,
            versions=[version for model in models for version in model.versions],
            externals=[each.model for each in externals],
            plans={where: plans for m in models for where, plans in m.plans.items()},
            engines={digest: engine for m in models for digest, engine in m.engines.items()},
            records={digest: known for m in models for digest, known in m.records.items()},
            runs={master: runs for m in models for master, runs in m.runs.items()},
            requests={m.versions[0].name: m.requests for m in models},
            serving_changes={name: each.serving_changes for name, each in read},
            weight_changes={name: each.weight_changes for name, each in read},
            removals=self._removals({name for name, _ in read}),
            running=list(self.tasks(task_names).values()),
            compiler=self._compiler,
        )
        self._settled = {d: known for d, known in self._settled.items() if d in view.records}
        self._attempted &= view.records.keys()
        self._note_what_is_new(view)
        view = replace(
            view,
            seen_at=self._seen_at,
            marked_at=self._marked_at,
            began_at=self._began_at or view.began_at,
        )
        return replace(
            view,
            ends=self._attempts(view, planning_names, self._task_end),
            timings=self._attempts(view, timing_names, self._task_start),
        )

    def _note_what_is_new(self, view: FleetView) -> None:
        """Take the time at which attempts and marks were first seen; at a start that is unknown."""
        now = utc_now()
        is_first_look = self._began_at is None
        num_seen = {digest: len(known) for digest, known in view.records.items()}
        new = {d: now for d, num in num_seen.items() if num > self._num_seen.get(d, 0)}
        marked_at = None if is_first_look else now
        self._marked_at = {mark: self._marked_at.get(mark, marked_at) for mark in view.marks}
        if is_first_look:
            self._began_at = now
            new = {}
        kept = {digest: at for digest, at in self._seen_at.items() if digest in num_seen}
        self._seen_at = kept | new
        self._num_seen = num_seen

    def tasks(self, names: Iterable[str]) -> dict[str, TaskStart]:
        """What tasks of ours were launched to do, by name; others are left out."""
        known = {name: self._task_start(name) for name in names}
        return {name: start for name, start in known.items() if start is not None}

    def _models(self, attached: Mapping[str, set[int]]) -> Iterator[_ModelRead]:
        names = self.moment.model_names()
        self._prefetch(names)
        for name in names:
            try:
                model = self._model(name, attached.get(name, set()))
            except SmeltError as error:
                self._log_once(f"model {name}", f"nothing is built for model '{name}' now: {error}")
            else:
                self._logged.pop(f"model {name}", None)
                yield model

    def _externals(self) -> Iterator[_ExternalRead]:
        for name in self.moment.external_names():
            subject = f"external model {name}"
            try:
                read = _ExternalRead(
                    self.moment.external_versions(name)[-1],
                    self.moment.serving_changes(name),
                    self.moment.weight_changes(name),
                )
            except SmeltError as error:
                self._log_once(subject, f"events of {subject} are left out: {error}")
            else:
                self._logged.pop(subject, None)
                yield read

    def _prefetch(self, names: Iterable[str]) -> None:
        """Read what is new of the engines, many documents at once: at a start that is all."""
        masters: set[str] = set()
        for name in names:
            with suppress(SmeltError):  # it is logged below
                masters.add(self.moment.model_version(name).master.digest)
        self.moment.prefetch_engines(masters)

    def _model(self, name: str, attached: set[int]) -> _ModelRead:
        model = _ModelRead(
            requests=self.moment.rebuild_requests(name),
            serving_changes=self.moment.serving_changes(name),
            weight_changes=self.moment.weight_changes(name),
        )
        newest = self.moment.model_version(name)
        self._add(newest, model)
        for number in sorted(attached - {newest.version}, reverse=True):
            subject = f"model {name} version {number}"
            try:
                self._add(self.moment.model_version(name, number), model)
            except SmeltError as error:
                # One that was removed serves until the next one does, and needs no more engines.
                if number not in self.moment.removed_versions().get(name, ()):
                    self._log_once(
                        subject, f"nothing is built for {subject}, which serves: {error}"
                    )
            else:
                self._logged.pop(subject, None)
        return model

    def _removals(self, read: set[str]) -> dict[str, list[ModelRemoval]]:
        """Removals of these models, and of those that have nothing left; others wait for them."""
        unread = set(self.moment.model_names()) - read
        removed = self.moment.removed_versions()
        return {
            name: [each for number in numbers if (each := self._removal(name, number))]
            for name, numbers in removed.items()
            if name not in unread
        }

    def _removal(self, name: str, number: int) -> ModelRemoval | None:
        subject = f"removal of model {name} version {number}"
        return self._readable(subject, lambda: self.moment.removal(name, number))

    def _add(self, version: ModelVersion, model: _ModelRead) -> None:
        master = version.master.digest
        if master not in model.runs:
            model.engines |= {engine.digest: engine for engine in self.moment.engines(master)}
            model.runs[master] = self.moment.joint_runs(master)
        plans = self.moment.build_plans(version.name, version.version)
        for plan in plans:
            model.records |= self._records_of(plan, model.engines, model.requests)
        model.plans[version.name, version.version] = plans
        model.versions.append(version)

    def _records_of(
        self,
        plan: BuildPlan,
        engines: Mapping[str, PublishedEngine],
        requests: Sequence[RebuildRequest],
    ) -> dict[str, list[BuildRecord]]:
        generation = Generation.parse(plan.node_class.generation)
        records: dict[str, list[BuildRecord]] = {}
        for digest in (planned.digest for planned in plan.planned):
            engine = engines.get(digest)
            is_done = (
                engine is not None
                and is_proven_on(engine, generation)
                and not is_to_be_proven_again(engine, requests, plan)
            )
            known = self._settled.pop(digest, None)
            # What was proven before this process began needs none: there may be years of them.
            if known is None and is_done and digest not in self._attempted:
                known = []
            is_settled = partial(
                is_given_up, digest, requests=requests, policy=self._policy, plan=plan
            )
            if known is None or not (is_done or is_settled(known)):
                known = self.moment.build_records(digest)
            records[digest] = known
            if is_done or is_settled(known):
                self._settled[digest] = known
                self._attempted.discard(digest)
            else:
                self._attempted.add(digest)
        return records

    def _attempts(
        self,
        view: FleetView,
        names_of: Callable[[FleetView, ModelVersion, NodePool, RetryPolicy], list[str]],
        read: Callable[[str], _DocumentT | None],
    ) -> dict[str, _DocumentT]:
        """What attempts left so far, by name; each has left something before the next begins."""
        found: dict[str, _DocumentT] = {}
        for pool in distinct_pools(view.pools):
            for version in view.versions:
                for name in names_of(view, version, pool, self._policy):
                    if (left := read(name)) is None:
                        break
                    found[name] = left
        return found

    def _task_start(self, name: str) -> TaskStart | None:
        return self._readable(f"start of task {name}", lambda: self._registry.task_start(name))

    def _task_end(self, name: str) -> TaskEnd | None:
        unknown = TaskEnd(name=name, detail="its end cannot be read", created_at=_LONG_AGO)
        subject = f"end of task {name}"
        return self._readable(subject, lambda: self._registry.task_end(name), unknown)

    def _readable(
        self,
        subject: str,
        read: Callable[[], _DocumentT | None],
        unknown: _DocumentT | None = None,
    ) -> _DocumentT | None:
        try:
            return read()
        except StoreError as error:
            self._log_once(subject, f"the {subject} is left out: {error}")
            return unknown

    def _log_once(self, subject: str, fault: str) -> None:
        """Log a fault once for as long as it stays the same: syncs come every few seconds."""
        if self._logged.get(subject) != fault:
            logger.error("%s", fault)
            self._logged[subject] = fault


def attached_versions(snapshot: fleet.FleetSnapshot) -> dict[str, set[int]]:
    """Versions that replicas are attached for and have not failed, by model."""
    found: dict[str, set[int]] = {}
    for report in snapshot.replicas:
        if report.state != fleet.REPLICA_STATE_FAILED:
            found.setdefault(report.model_name, set()).add(report.model_version)
    return found
