"""What the page shows of each model on each generation: from the fleet's state and the last view.

Pure. It reads no store: what is read for one model alone is in `why_cases`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any

from services.contracts.events import Event, EventKind
from services.contracts.hardware.facts import generation_named
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.model.precisions import is_tried
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.speed_gate import deciding, is_wild, speed_over_fallback
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.build.key_status import KeyState, RetryPolicy
from services.controller.deploy.deployment import DeploymentState
from services.controller.events.fallback_words import fallback_name
from services.controller.events.serving_events import serving_of
from services.controller.explain.build_queue import build_document, standby_document
from services.controller.explain.replica_words import loading_words
from services.pb import fleet_v1_pb2 as fleet

_FAILURES = (KeyState.FAILED, KeyState.PROOF_FAILED, KeyState.QUARANTINED)
# A compiler's words may be pages; all of them are in what is shown of one model.
_MAX_WORDS = 240
_MAX_BUILDS = 100
_Place = tuple[str, int, str]


class Attention(IntEnum):
    """What a person looks at first."""

    DOWN = 0
    FAILED = 1
    FALLBACK = 2
    ON_THE_WAY = 3
    READY = 4
    UNLOADED = 5


def fleet_document(snapshot: fleet.FleetSnapshot, view: FleetView | None) -> dict[str, Any]:
    """The whole fleet as plain data.

    Args:
        snapshot: of the fleet's state.
        view: what the build loop read last; without it nothing is known of engines' speeds,
            proofs and failed builds.
    """
    shown = _Shown(snapshot, view)
    nodes: dict[str, int] = defaultdict(int)
    for pool in shown.pools:
        nodes[pool.node_class.generation] += pool.num_nodes
    return {
        "store": snapshot.store_url,
        "fault": snapshot.fault,
        "standby": standby_document(snapshot),
        "is_read": view is not None,
        "generations": [{"name": name, "nodes": num} for name, num in sorted(nodes.items())],
        "models": [shown.model(model) for model in snapshot.models],
        "builds": [build_document(build) for build in snapshot.builds[:_MAX_BUILDS]],
        "num_builds": len(snapshot.builds),
    }


class _Shown:
    """Indexes of one moment, so that a thousand models take no thousand looks at all replicas."""

    def __init__(self, snapshot: fleet.FleetSnapshot, view: FleetView | None) -> None:
        self._view = view or FleetView()
        self._versions = {(v.name, v.version): v for v in self._view.versions}
        self.pools = distinct_pools(self._view.pools)
        self._served: dict[_Place, Event] = {
            (each.model, each.version, each.generation): each for each in serving_of(snapshot)
        }
        self._replicas: dict[_Place, list[fleet.ReplicaReport]] = defaultdict(list)
        self._places: dict[tuple[str, int], set[str]] = defaultdict(set)
        for report in (*snapshot.replicas, *snapshot.unseen):
            generation = generation_named(report.device_facts_json)
            self._replicas[report.model_name, report.model_version, generation].append(report)
            self._places[report.model_name, report.model_version].add(generation)
        self._lost = {report.replica_id for report in snapshot.unseen}
        # Most keys never failed, and need no further look.
        self._failing = {
            *(
                d
                for d, known in self._view.records.items()
                if known and not known[-1].outcome.is_good
            ),
            *(d for d, e in self._view.engines.items() if e.proof.outcome is ProofOutcome.FAILED),
        }
        self._building = {
            (build.model_name, build.model_version, build.generation)
            for build in snapshot.builds
            if build.started_at
        }

    def model(self, model: fleet.ServedModel) -> dict[str, Any]:
        """A model version with a row for each generation."""
        key = (model.name, model.version)
        here = {pool.node_class.generation for pool in self.pools if pool.num_nodes}
        # A replica that does not know its device yet is of one of those, or stands alone.
        generations = here | self._places[key] - {""} or {""}
        rows = [self._row(model, generation) for generation in sorted(generations)]
        return {
            "name": model.name,
            "version": model.version,
            "weight": model.weight,
            "attention": min(row["attention"] for row in rows),
            "rows": rows,
        }

    def _row(self, model: fleet.ServedModel, generation: str) -> dict[str, Any]:
        place = (model.name, model.version, generation)
        served = None if model.is_unloaded else self._served.get(place)
        attention, state, why = self._state(model, served, generation)
        version = self._versions.get(place[:2])
        troubles = list(self._troubles(version, generation)) if version else []
        if troubles and attention is not Attention.UNLOADED:
            attention = min(attention, Attention.FAILED)
        is_engine = served is not None and served.kind is EventKind.ENGINE_SERVING
        engine = self._view.engines.get(served.key) if served and is_engine else None
        return {
            "generation": generation,
            "attention": attention.value,
            "state": state,
            "why": why[:_MAX_WORDS],
            "is_building": place in self._building,
            "engine": served.why if served and is_engine else _fallback_of(self._replicas[place]),
            **self._speed(engine, generation),
            **_power(engine),
            "trouble": troubles[0][:_MAX_WORDS] if troubles else "",
            "num_troubles": len(troubles),
            "num_replicas": len(self._replicas[place]),
        }

    def _state(
        self, model: fleet.ServedModel, served: Event | None, generation: str
    ) -> tuple[Attention, str, str]:
        """How urgent it is, the state in a word or two, and why it is so."""
        if model.is_unloaded:
            return Attention.UNLOADED, "unloaded", ""
        if served and served.kind is EventKind.ENGINE_SERVING:
            return Attention.READY, "ready", model.unplaced
        if served:
            return Attention.FALLBACK, "on the fallback", served.why
        place = (model.name, model.version)
        reports = [*self._replicas[*place, generation], *self._replicas[*place, ""]]
        for report in reports:
            if report.state == fleet.REPLICA_STATE_FAILED:
                return Attention.DOWN, "failed", report.detail or model.reason
            if report.replica_id in self._lost:
                return Attention.DOWN, "lost", "its replica's connection to the controller broke"
        if model.unplaced:
            return Attention.DOWN, "no room", model.unplaced
        if model.state == DeploymentState.UNAVAILABLE:
            return Attention.DOWN, "unavailable", model.reason
        words = next(filter(None, map(loading_words, reports)), model.reason)
        # A version is READY as soon as another generation has a replica of it.
        state = "loading" if model.state == DeploymentState.READY else model.state.lower()
        return Attention.ON_THE_WAY, state, words

    def _troubles(self, version: ModelVersion, generation: str) -> Iterator[str]:
        """Builds and proofs that failed, less those that refuse what `auto` merely tries."""
        made = self._view.plans.get((version.name, version.version), ())
        if self._failing.isdisjoint(each.digest for plan in made for each in plan.planned):
            return
        pools = (pool for pool in self.pools if pool.node_class.generation == generation)
        plans = (self._view.plan_of(version, pool) for pool in pools)
        for plan in filter(None, plans):
            for status in self._view.statuses(version, plan, RetryPolicy()):
                key = status.planned.key
                is_refused = status.state is KeyState.PROOF_FAILED
                if is_refused and is_tried(version.recipe, key.precision):
                    continue
                if status.state in _FAILURES:
                    yield f"{key.kind} {key.precision}: {status.state.words}: {status.reason}"

    def _speed(self, engine: PublishedEngine | None, generation: str) -> dict[str, Any]:
        """How many times faster than the fallback, in the run that counts."""
        if engine is None:
            return {"times": None, "is_wild": False}
        runs = self._view.runs.get(engine.manifest.key.master_digest, ())
        timings = deciding(engine_history(engine, generation, runs))
        speed = speed_over_fallback(timings)
        return {"times": speed and float(f"{speed:.3g}"), "is_wild": is_wild(timings)}


def _fallback_of(reports: Iterable[fleet.ReplicaReport]) -> str:
    """Which fallback answers; "" where none does."""
    names = sorted({fallback_name(report) for report in reports if report.fallback_reason})
    return f"fallback ({', '.join(names)})" if names else ""


def _power(engine: PublishedEngine | None) -> dict[str, Any]:
    """Of the kinds of faults that were tried, how many a proof would refuse, and which not."""
    checks = engine.proof.power if engine else ()
    num_seen = sum(len(check.refused) + len(check.tightened) for check in checks)
    return {
        "num_seen": num_seen,
        "num_tried": num_seen + sum(len(check.blind) for check in checks),
        "blind": sorted({name for check in checks for name in check.blind}),
    }
