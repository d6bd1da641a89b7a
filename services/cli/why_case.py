"""What `smelt why` knows of one model version on one generation, before it is put into words."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from services.cli.told import Turn, where
from services.contracts.build_plan import BuildPlan
from services.contracts.gate import deciding
from services.contracts.hardware import DeviceFacts
from services.contracts.joint_order import engine_history
from services.contracts.joint_run import JointRun
from services.contracts.manifest import BuildRecord, ModelVersion, PublishedEngine, Timing
from services.contracts.node_class import NodeClass
from services.contracts.registry import Registry
from services.contracts.selection import Rejection, Selection, select
from services.contracts.signing import TrustRoot
from services.controller.build_view import FleetView, plan_for_pool
from services.controller.key_status import KeyStatus, RetryPolicy
from services.controller.seams import NodePool
from services.pb import fleet_v1_pb2 as fleet


@dataclass(frozen=True, kw_only=True)
class Case:
    """One generation of one model version.

    Attributes:
        facts: of a replica's device, or of the device that the plan was made on.
        replicas: attached ones of that version and generation; None when no fleet was asked.
        replayable: digests of keys whose last attempt failed at a sample that can be run again.
        engines: all of the version's master, whatever they are for.
        runs: in which those were timed together, those that are believed.
        selection: what a replica there would choose; None when no device is known.
        turn: its build in the fleet's queue; None when nothing is due, or no fleet was asked.
    """

    version: ModelVersion
    generation: str
    facts: DeviceFacts | None
    plan: BuildPlan | None
    statuses: Sequence[KeyStatus]
    replayable: frozenset[str]
    engines: Sequence[PublishedEngine]
    runs: Sequence[JointRun]
    selection: Selection | None
    replicas: Sequence[fleet.ReplicaReport] | None
    turn: Turn | None

    @property
    def decided_by(self) -> str:
        """Which joint run put the engines in order; "" when their own proofs do."""
        return self.selection.joint.words if self.selection else ""

    def timings(self, engine: PublishedEngine | None) -> Sequence[Timing]:
        """What an engine took in the run that counts."""
        if engine is None:
            return ()
        return deciding(engine_history(engine, self.generation, self.runs))

    @property
    def rejections(self) -> dict[str, Rejection]:
        """Why engines are passed over, by digest."""
        found = self.selection.rejections if self.selection else ()
        return {rejection.digest: rejection for rejection in found}


def case_of(
    registry: Registry,
    version: ModelVersion,
    generation: str,
    plans: Sequence[BuildPlan],
    replicas: Sequence[fleet.ReplicaReport] | None,
    turn: Turn | None,
    trust: TrustRoot | None,
) -> Case:
    """What is known of a generation.

    Args:
        registry: of the store.
        version: that is explained.
        generation: where it would serve.
        plans: of the version, oldest first.
        replicas: attached ones of the version; None when no fleet was asked.
        turn: of its build there.
        trust: whose signatures count.
    """
    here = None if replicas is None else [r for r in replicas if where(r) == generation]
    made_there = [p for p in plans if p.node_class.generation == generation]
    facts = _facts(made_there, here or ())
    plan = _plan(made_there, facts)
    engines = registry.engines(version.master.digest)
    runs = registry.joint_runs(version.master.digest, trust)
    planned = [each.digest for each in plan.planned] if plan else []
    records = {digest: registry.build_records(digest) for digest in planned}
    return Case(
        version=version,
        generation=generation,
        facts=facts,
        plan=plan,
        statuses=_statuses(registry, version, plan, engines, records) if plan else (),
        replayable=frozenset(digest for digest in planned if _has_worst(records[digest])),
        engines=engines,
        runs=runs,
        selection=select(
            engines,
            facts,
            version=version,
            untrusted=registry.untrusted(engines, version.master, trust),
            runs=runs,
        )
        if facts
        else None,
        replicas=here,
        turn=turn,
    )


def _facts(
    plans: Sequence[BuildPlan], replicas: Sequence[fleet.ReplicaReport]
) -> DeviceFacts | None:
    for replica in replicas:
        # One of another release may say more than this one can read.
        with suppress(ValidationError):
            return DeviceFacts.from_json(replica.device_facts_json)
    return next((plan.facts for plan in reversed(plans) if plan.facts), None)


def _plan(plans: Sequence[BuildPlan], facts: DeviceFacts | None) -> BuildPlan | None:
    if facts is None:
        return plans[-1] if plans else None
    pool = NodePool(node_class=NodeClass.from_facts(facts), source="", num_nodes=1)
    return plan_for_pool(plans, pool)


def _statuses(
    registry: Registry,
    version: ModelVersion,
    plan: BuildPlan,
    engines: Sequence[PublishedEngine],
    records: Mapping[str, Sequence[BuildRecord]],
) -> list[KeyStatus]:
    view = FleetView(
        engines={engine.digest: engine for engine in engines},
        records=records,
        requests={version.name: registry.rebuild_requests(version.name)},
    )
    return view.statuses(version, plan, RetryPolicy())


def _has_worst(records: Sequence[BuildRecord]) -> bool:
    proof = records[-1].proof if records else None
    return proof is not None and proof.worst is not None
