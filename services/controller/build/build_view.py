"""What the build policy looks at, and simple queries on it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from services.contracts.builds.build_plan import BuildPlan, RebuildRequest, TaskEnd, TaskStart
from services.contracts.builds.build_record import BuildRecord
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelRemoval, ModelVersion, PublishedEngine
from services.contracts.registry.serving import ServingChange
from services.contracts.registry.weights import VersionWeights
from services.contracts.selection.joint_run import JointRun
from services.controller.build.key_status import KeyStatus, RetryPolicy, key_status
from services.controller.interfaces import NodePool

_NOT_BEGUN: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """Hardware, models and store at one moment.

    Attributes:
        versions: the newest of each model, then others that replicas are attached for.
        externals: the newest version of each external model.
        plans: by model and version, oldest first.
        engines: by digest.
        records: attempts by key digest, oldest first; keys that are proven may lack.
        runs: by master, those in which its engines were timed together, oldest first.
        requests: by model, oldest first.
        serving_changes: loads and unloads by model, oldest first.
        weight_changes: weights of versions by model, oldest first.
        removals: of versions by model, also of models that have none left.
        ends: of tasks that ended before there was a plan, by name.
        timings: starts of tasks that were to time engines again, by name.
        running: tasks that were launched and have not ended.
        waiting: why those of them wait that have done so for long, by name.
        seen_at: when the newest attempt at a key was first seen, by this process's clock; keys
            whose attempts are older than it lack.
        marked_at: when each of `marks` was first seen, by this process's clock; None for those of
            the first view.
        began_at: when that was made, by this process's clock.
        refused: whether their pause goes on, of tasks that the launcher did not take, by name.
        served: model, version and generation of replicas that take requests.
        compiler: what the launcher calls the compiler that its tasks run.
    """

    pools: Sequence[NodePool] = ()
    versions: Sequence[ModelVersion] = ()
    externals: Sequence[ExternalModel] = ()
    plans: Mapping[tuple[str, int], Sequence[BuildPlan]] = field(default_factory=dict)
    engines: Mapping[str, PublishedEngine] = field(default_factory=dict)
    records: Mapping[str, Sequence[BuildRecord]] = field(default_factory=dict)
    runs: Mapping[str, Sequence[JointRun]] = field(default_factory=dict)
    requests: Mapping[str, Sequence[RebuildRequest]] = field(default_factory=dict)
    serving_changes: Mapping[str, Sequence[ServingChange]] = field(default_factory=dict)
    weight_changes: Mapping[str, Sequence[VersionWeights]] = field(default_factory=dict)
    removals: Mapping[str, Sequence[ModelRemoval]] = field(default_factory=dict)
    ends: Mapping[str, TaskEnd] = field(default_factory=dict)
    timings: Mapping[str, TaskStart] = field(default_factory=dict)
    running: Sequence[TaskStart] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    seen_at: Mapping[str, datetime] = field(default_factory=dict)
    marked_at: Mapping[tuple[str, str], datetime | None] = field(default_factory=dict)
    began_at: datetime = _NOT_BEGUN
    refused: Mapping[str, bool] = field(default_factory=dict)
    served: frozenset[tuple[str, int, str]] = frozenset()
    compiler: str = ""

    @cached_property
    def engines_by_master(self) -> Mapping[str, Sequence[PublishedEngine]]:
        """The engines, grouped by their masters."""
        found: dict[str, list[PublishedEngine]] = {}
        for engine in self.engines.values():
            found.setdefault(engine.manifest.key.master_digest, []).append(engine)
        return found

    @property
    def marks(self) -> frozenset[tuple[str, str]]:
        """What changes with each engine, proof and joint run: replicas select by all three."""
        runs = ((master, run.created_at) for master, known in self.runs.items() for run in known)
        return frozenset([*((e.digest, e.proof.created_at) for e in self.engines.values()), *runs])

    def since(self, mark: tuple[str, str]) -> datetime:
        """When one of `marks` came: by the clock that wrote it only if before the first view."""
        return self.marked_at.get(mark) or min(datetime.fromisoformat(mark[1]), self.began_at)

    def is_newest(self, version: ModelVersion) -> bool:
        """Whether it is the version that is wanted, and not one that only serves still."""
        same = (known for known in self.versions if known.name == version.name)
        # The newest version of a model comes before its others.
        return next(same, version).version == version.version

    def requests_for(self, model: str, generation: str) -> list[RebuildRequest]:
        """Rebuild requests that concern a model on a generation."""
        known = self.requests.get(model, ())
        return [request for request in known if request.generation in ("", generation)]

    def plan_of(self, version: ModelVersion, pool: NodePool) -> BuildPlan | None:
        """The newest plan that was made for nodes as those of a pool."""
        plans = self.plans.get((version.name, version.version), ())
        return plan_for_pool(plans, pool, self.compiler)

    def statuses(
        self, version: ModelVersion, plan: BuildPlan, policy: RetryPolicy
    ) -> list[KeyStatus]:
        """The status of each key of a plan, in the plan's order.

        Args:
            version: that the plan is of; its rebuild requests count.
            plan: for one class of nodes.
            policy: of attempts and pauses.
        """
        generation = plan.node_class.generation
        requests = self.requests_for(version.name, generation)
        return [
            key_status(
                planned,
                Generation.parse(generation),
                self.engines.get(planned.digest),
                self.records.get(planned.digest, ()),
                requests,
                policy,
                plan,
                self.seen_at.get(planned.digest),
            )
            for planned in plan.planned
        ]


def plan_for_pool(
    plans: Sequence[BuildPlan], pool: NodePool, compiler: str = ""
) -> BuildPlan | None:
    """The newest plan for a pool's class; one made on a device counts where there are nodes.

    Nodes that name their toolchain are of another class once it is another one. Of those that
    do not (Kubernetes', and those still to come) only the compiler's name shows it.

    Args:
        plans: of one model version.
        pool: without nodes, only plans that were made without a device fit.
        compiler: the launcher's name of the compiler that tasks run; "" when it has none.

    Returns:
        None when none fits.
    """
    is_on_device = pool.num_nodes > 0
    fitting = [
        plan
        for plan in plans
        if (plan.facts is not None) == is_on_device
        and pool.node_class.may_be(plan.node_class)
        and (pool.node_class.toolchain or plan.compiler == compiler)
    ]
    return max(fitting, key=lambda plan: plan.created_at, default=None)


def distinct_pools(pools: Sequence[NodePool]) -> list[NodePool]:
    """Pools without those that another source knows better, so that no node is served twice."""
    by_class: dict[NodeClass, NodePool] = {}
    for pool in pools:
        known = by_class.get(pool.node_class)
        if known is None:
            by_class[pool.node_class] = pool
        elif pool.num_nodes > known.num_nodes:
            by_class[pool.node_class] = replace(pool, names=pool.names or known.names)
    kept = by_class.values()
    return [pool for pool in kept if not any(_knows_better(other, pool) for other in kept)]


def _knows_better(other: NodePool, pool: NodePool) -> bool:
    """Whether one source's facts on these nodes are a part of the other's."""
    if not pool.node_class.may_be(other.node_class) or (pool.num_nodes and not other.num_nodes):
        return False
    return _known_fields(pool.node_class) < _known_fields(other.node_class)


def _known_fields(node_class: NodeClass) -> set[str]:
    return {name for name, value in node_class.model_dump().items() if value}
