"""What `smelt why` explains: one model version on one generation, from store and fleet."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from services.contracts.build_plan import BuildPlan
from services.contracts.gate import deciding
from services.contracts.hardware import DeviceFacts, generation_named
from services.contracts.joint_order import engine_history
from services.contracts.joint_run import JointRun
from services.contracts.manifest import BuildRecord, ModelVersion, PublishedEngine, Timing
from services.contracts.node_class import NodeClass
from services.contracts.registry import Registry
from services.contracts.selection import Selection, select
from services.contracts.signing import TrustRoot
from services.controller.build_view import FleetView, plan_for_pool
from services.controller.key_status import KeyStatus, RetryPolicy
from services.controller.seams import NodePool
from services.pb import fleet_v1_pb2 as fleet


@dataclass(frozen=True, kw_only=True)
class Case:
    """One generation of one model version.

    Attributes:
        replicas: attached ones of that version and generation; None when no fleet was asked.
        build: its place in the fleet's queue; None when nothing is due, or no fleet was asked.
        plan: None when the generation's nodes have none yet.
        statuses: of the planned keys, the best first as a replica tries them.
        records: of attempts at planned keys, by digest.
        engines: all of the version's master, whatever they are for.
        runs: in which those were timed together, those that are believed.
        selection: what a replica there would choose; None when no device is known.
    """

    version: ModelVersion
    generation: str
    replicas: Sequence[fleet.ReplicaReport] | None
    build: dict[str, Any] | None
    plan: BuildPlan | None
    statuses: Sequence[KeyStatus]
    records: Mapping[str, Sequence[BuildRecord]]
    engines: Sequence[PublishedEngine]
    runs: Sequence[JointRun]
    selection: Selection | None

    @property
    def ranks(self) -> dict[str, int]:
        """Place of each engine that fits, by digest, from 1."""
        return _ranks(self.selection)

    def timings(self, engine: PublishedEngine | None) -> Sequence[Timing]:
        """What an engine took in the run that counts."""
        if engine is None:
            return ()
        return deciding(engine_history(engine, self.generation, self.runs))

    def has_worst_sample(self, digest: str) -> bool:
        """Whether a key's last attempt failed at a sample that can be run again."""
        records = self.records[digest]
        proof = records[-1].proof if records else None
        return proof is not None and proof.worst is not None


def replicas_of(
    snapshot: fleet.FleetSnapshot | None, version: ModelVersion
) -> dict[str, list[fleet.ReplicaReport]] | None:
    """Attached replicas of a version that report a generation, by it; None without a fleet."""
    if snapshot is None:
        return None
    found: dict[str, list[fleet.ReplicaReport]] = {}
    for report in snapshot.replicas:
        is_ours = (report.model_name, report.model_version) == (version.name, version.version)
        if is_ours and (generation := generation_named(report.device_facts_json)):
            found.setdefault(generation, []).append(report)
    return found


def case_of(
    registry: Registry,
    version: ModelVersion,
    generation: str,
    plans: Sequence[BuildPlan],
    replicas: Sequence[fleet.ReplicaReport] | None,
    build: dict[str, Any] | None,
    trust: TrustRoot | None,
) -> Case:
    """Gather one generation.

    Args:
        registry: of the store.
        version: that is explained.
        generation: where it would serve.
        plans: of the version, oldest first.
        replicas: attached ones of the version there; None when no fleet was asked.
        build: its place in the queue there.
        trust: whose signatures count.
    """
    plans = [plan for plan in plans if plan.node_class.generation == generation]
    facts = _facts(plans, replicas or ())
    plan = _plan(plans, facts)
    engines = registry.engines(version.master.digest)
    runs = registry.joint_runs(version.master.digest, trust)
    digests = [each.digest for each in plan.planned] if plan else []
    records = {digest: registry.build_records(digest) for digest in digests}
    untrusted = registry.untrusted(engines, version.master, trust)
    selection = (
        select(engines, facts, version=version, untrusted=untrusted, runs=runs) if facts else None
    )
    ranks = _ranks(selection)
    view = FleetView(
        engines={engine.digest: engine for engine in engines},
        records=records,
        requests={version.name: registry.rebuild_requests(version.name)},
    )
    statuses = view.statuses(version, plan, RetryPolicy()) if plan else ()
    return Case(
        version=version,
        generation=generation,
        replicas=replicas,
        build=build,
        plan=plan,
        statuses=sorted(statuses, key=lambda s: ranks.get(s.planned.digest, len(ranks) + 1)),
        records=records,
        engines=engines,
        runs=runs,
        selection=selection,
    )


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
    pool = NodePool(node_class=NodeClass.from_facts(facts), source="", num_nodes=1)
    return plan_for_pool(plans, pool)
