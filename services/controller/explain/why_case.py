"""What `smelt why` explains: one model version on one generation, from store and fleet."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from services.contracts.builds.build_plan import BuildPlan
from services.contracts.hardware.facts import DeviceFacts, generation_named
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion, PublishedEngine, Timing
from services.contracts.registry.registry import Registry
from services.contracts.selection.joint_order import deciding_timings
from services.contracts.selection.own_engines import own_engines
from services.contracts.selection.selection import Selection, select
from services.controller.build.build_view import FleetView, plan_for_pool
from services.controller.build.key_status import KeyStatus, RetryPolicy
from services.controller.explain.running_builds import stage_document
from services.controller.interfaces import NodePool
from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    from services.contracts.security.signing import TrustRoot


class Case:
    """One generation of one model version.

    Attributes:
        plan: None when the generation's nodes have none yet.
        statuses: of the planned keys, the best first as a replica tries them.
        engines: all of the model, whichever version of it they are for.
        selection: what a replica there would choose; None when no device is known.
        ranks: place of each engine that fits, by digest, from 1.
        stages: by digest, what is done now for keys that are not proven.
    """

    def __init__(
        self,
        registry: Registry,
        version: ModelVersion,
        plans: Sequence[BuildPlan],
        *,
        replicas: Sequence[fleet.ReplicaReport] | None,
        build: dict[str, Any] | None,
        trust: "TrustRoot | None",
    ) -> None:
        """Gather what is known.

        Args:
            registry: of the store.
            version: that is explained.
            plans: of the version and generation, oldest first.
            replicas: attached ones of both; None when no fleet was asked.
            build: its place in the fleet's queue; None when nothing is due.
            trust: whose signatures count.
        """
        self.version = version
        self.replicas = replicas
        self.build = build
        # Of a device and not of its generation: selection goes by name, memory and driver as well.
        facts = _facts(plans, replicas or ())
        self.plan = _plan(plans, facts)
        digest = version.master.digest
        self.engines = own_engines(registry, version)
        self._runs = registry.joint_runs(digest, trust)
        planned = [each.digest for each in self.plan.planned] if self.plan else []
        self._records = {digest: registry.build_records(digest) for digest in planned}
        self.selection: Selection | None = None
        if facts:
            untrusted = registry.untrusted(self.engines, version.master, trust)
            self.selection = select(
                self.engines, facts, version=version, untrusted=untrusted, runs=self._runs
            )
        self.ranks = _ranks(self.selection)
        self.statuses = sorted(self._statuses(registry), key=self._place)
        open_ones = [each.planned.digest for each in self.statuses if each.state.is_open]
        self.stages = {each: stage_document(registry, each, build) for each in open_ones}

    def timings(self, engine: PublishedEngine | None) -> Sequence[Timing]:
        """What an engine took in the run that counts."""
        return deciding_timings(engine, self._runs) if engine else ()

    def has_worst_sample(self, digest: str) -> bool:
        """Whether a key's last attempt failed at a sample that can be run again."""
        records = self._records[digest]
        proof = records[-1].proof if records else None
        return proof is not None and proof.worst is not None

    def _statuses(self, registry: Registry) -> Sequence[KeyStatus]:
        view = FleetView(
            engines={engine.digest: engine for engine in self.engines},
            records=self._records,
            requests={self.version.name: registry.rebuild_requests(self.version.name)},
        )
        return view.statuses(self.version, self.plan, RetryPolicy()) if self.plan else ()

    def _place(self, status: KeyStatus) -> int:
        return self.ranks.get(status.planned.digest, len(self.ranks) + 1)


def replicas_of(
    snapshot: fleet.FleetSnapshot | None, version: ModelVersion
) -> dict[str, list[fleet.ReplicaReport]] | None:
    """Attached replicas of a version by generation; None without a fleet.

    Under "" are those that report none that can be read, as one may that is loading.
    """
    if snapshot is None:
        return None
    found: dict[str, list[fleet.ReplicaReport]] = {}
    for report in snapshot.replicas:
        is_ours = (report.model_name, report.model_version) == (version.name, version.version)
        if is_ours:
            found.setdefault(generation_named(report.device_facts_json), []).append(report)
    return found


def _ranks(selection: Selection | None) -> dict[str, int]:
    if selection is None or selection.engine is None:
        return {}
    fitting = (selection.engine, *selection.runners_up)
    return {engine.digest: rank for rank, engine in enumerate(fitting, start=1)}


def _facts(
    plans: Sequence[BuildPlan], replicas: Sequence[fleet.ReplicaReport]
) -> DeviceFacts | None:
    """Of a replica's device, else of the device that the newest plan was made on."""
    for replica in replicas:
        # A replica of another release may report what this one cannot read.
        with suppress(ValidationError):
            return DeviceFacts.from_json(replica.device_facts_json)
    return next((plan.facts for plan in reversed(plans) if plan.facts), None)


def _plan(plans: Sequence[BuildPlan], facts: DeviceFacts | None) -> BuildPlan | None:
    if facts is None:
        return plans[-1] if plans else None
    # Made on this very device. Which release's code made it does not matter: the digest of the
    # code that is here takes longer than all else.
    if made_here := [plan for plan in plans if plan.facts == facts]:
        return made_here[-1]
    pool = NodePool(node_class=NodeClass.from_facts(facts), source="", num_nodes=1)
    return plan_for_pool(plans, pool)
