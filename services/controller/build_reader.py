"""Reads from the registry what the build policy looks at."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.contracts.build_plan import BuildPlan, RebuildRequest, TaskEnd, TaskStart
from services.contracts.errors import SmeltError
from services.contracts.hardware import Generation
from services.contracts.manifest import BuildRecord, ModelVersion, PublishedEngine
from services.contracts.registry import Registry
from services.controller.build_policy import planning_names
from services.controller.build_view import FleetView, distinct_pools
from services.controller.key_status import RetryPolicy, is_proven_on
from services.controller.seams import NodePool

logger = logging.getLogger(__name__)


class ViewReader:
    """Makes views; remembers only what need not be read again. Blocks."""

    def __init__(self, registry: Registry, policy: RetryPolicy, compiler: str) -> None:
        self._registry = registry
        self._policy = policy
        self._compiler = compiler
        # Records of keys that were proven when they were read: no attempt will follow.
        self._settled: dict[str, list[BuildRecord]] = {}

    def read(self, pools: Sequence[NodePool], task_names: Iterable[str]) -> FleetView:
        """The store now, for these pools, with these tasks running; raises StoreError.

        A model of which a document cannot be read is left out, and the others are not.
        """
        versions: list[ModelVersion] = []
        plans: dict[tuple[str, int], list[BuildPlan]] = {}
        requests: dict[str, list[RebuildRequest]] = {}
        for name in self._registry.model_names():
            try:
                version = self._registry.model_version(name)
                plans[name, version.version] = self._registry.build_plans(name, version.version)
                requests[name] = self._registry.rebuild_requests(name)
            except SmeltError as error:
                logger.error("nothing is built for model '%s' now: %s", name, error)
                continue
            versions.append(version)
        engines = {engine.digest: engine for engine in self._registry.engines()}
        starts = (self._registry.task_start(name) for name in task_names)
        view = FleetView(
            pools=pools,
            versions=versions,
            plans=plans,
            engines=engines,
            records=self._records(plans, engines, requests),
            requests=requests,
            running=[start for start in starts if start is not None],
            compiler=self._compiler,
        )
        return replace(view, ends=self._ends(view))

    def tasks(self, names: Iterable[str]) -> dict[str, TaskStart]:
        """What tasks of ours were launched to do, by name; others are left out."""
        known = {name: self._registry.task_start(name) for name in names}
        return {name: start for name, start in known.items() if start is not None}

    def _records(
        self,
        plans: dict[tuple[str, int], list[BuildPlan]],
        engines: dict[str, PublishedEngine],
        requests: dict[str, list[RebuildRequest]],
    ) -> dict[str, list[BuildRecord]]:
        records: dict[str, list[BuildRecord]] = {}
        for (model, _), known in plans.items():
            reproved = {digest for request in requests[model] for digest in request.reprove}
            for plan in known:
                generation = Generation.parse(plan.node_class.generation)
                for digest in (planned.digest for planned in plan.planned):
                    engine = engines.get(digest)
                    is_settled = (
                        engine is not None
                        and is_proven_on(engine, generation)
                        and digest not in reproved
                    )
                    records[digest] = self._records_of(digest, is_settled=is_settled)
        return records

    def _records_of(self, digest: str, *, is_settled: bool) -> list[BuildRecord]:
        if is_settled and digest in self._settled:
            return self._settled[digest]
        records = self._registry.build_records(digest)
        if is_settled:
            self._settled[digest] = records
        return records

    def _ends(self, view: FleetView) -> dict[str, TaskEnd]:
        """How tasks ended that were to make the plans which are still lacking."""
        ends: dict[str, TaskEnd] = {}
        for pool in distinct_pools(view.pools):
            for version in view.versions:
                if view.plan_of(version, pool) is None:
                    for name in planning_names(view, version, pool, self._policy):
                        if (end := self._registry.task_end(name)) is None:
                            break
                        ends[name] = end
        return ends
