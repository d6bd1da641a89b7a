"""What the page shows of each model on each generation; pure, and reads no store."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from services.contracts.events import EventKind
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.facts import generation_named
from services.contracts.model.manifest import ProofOutcome, PublishedEngine, Timing
from services.contracts.model.precisions import is_tried
from services.contracts.selection.joint_order import engine_history
from services.contracts.selection.proof_checks import PowerCheck
from services.contracts.selection.speed_gate import deciding, is_wild, speed_over_fallback
from services.controller.build.build_view import FleetView, distinct_pools
from services.controller.build.key_status import KeyState, RetryPolicy
from services.controller.deploy.deployment import DeploymentState
from services.controller.events.fallback_words import fallback_name, loading_words
from services.controller.events.serving_events import serving_of
from services.controller.explain.build_queue import build_document, standby_document
from services.pb import fleet_v1_pb2 as fleet

_FAILURES = (KeyState.FAILED, KeyState.PROOF_FAILED, KeyState.QUARANTINED)
# A compiler's words may be pages; all of them are in what is shown of one model.
_MAX_WORDS = 240
_MAX_BUILDS = 100


# What is shown of an engine, by what changes with it: `FleetView.marks`.
Measured = dict[tuple[str, str, str, tuple[str, ...]], dict[str, Any]]
# What a person looks at first.
Attention = IntEnum("Attention", "DOWN FAILED FALLBACK ON_THE_WAY READY UNLOADED", start=0)


def fleet_document(
    snapshot: fleet.FleetSnapshot, view: FleetView | None, known: Measured | None = None
) -> dict[str, Any]:
    """The whole fleet as plain data.

    Args:
        snapshot: what serves.
        view: of the store; without one there are no speeds, proofs and failed builds.
        known: of engines, from the document before; becomes that of this one.
    """
    shown = _Shown(snapshot, view or FleetView(), known or {})
    document = {
        "store": snapshot.store_url,
        "fault": snapshot.fault,
        "standby": standby_document(snapshot),
        "is_read": view is not None,
        "generations": [{"name": name, "nodes": num} for name, num in sorted(shown.nodes.items())],
        "models": [shown.model(model) for model in snapshot.models],
        "builds": [build_document(build) for build in snapshot.builds[:_MAX_BUILDS]],
        "num_builds": len(snapshot.builds),
    }
    if known is not None:
        known.clear()
        known |= shown.measured
    return document


class _Shown:
    """Indexes of one moment, so that a thousand models take no thousand looks at all replicas."""

    def __init__(self, snapshot: fleet.FleetSnapshot, view: FleetView, known: Measured) -> None:
        self._view = view
        self._known = known
        self.measured: Measured = {}
        self._versions = {(v.name, v.version): v for v in view.versions}
        self._pools = distinct_pools(view.pools)
        self.nodes: dict[str, int] = defaultdict(int)
        for pool in self._pools:
            self.nodes[pool.node_class.generation] += pool.num_nodes
        self._served = {(e.model, e.version, e.generation): e for e in serving_of(snapshot)}
        self._lost = {report.replica_id for report in snapshot.unseen}
        # By model and version, then by generation.
        self._replicas: dict[tuple[str, int], dict[str, list[fleet.ReplicaReport]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for report in (*snapshot.replicas, *snapshot.unseen):
            key = (report.model_name, report.model_version)
            self._replicas[key][generation_named(report.device_facts_json)].append(report)
        self._building = {
            (b.model_name, b.model_version, b.generation) for b in snapshot.builds if b.started_at
        }
        # Most keys never failed, and need no further look.
        tried = view.records.items()
        failing = {d for d, made in tried if made and not made[-1].outcome.is_good}
        failing |= {
            digest
            for digest, engine in view.engines.items()
            if engine.proof.outcome is ProofOutcome.FAILED
        }
        self._troubled = {
            key
            for key, plans in view.plans.items()
            if failing and not failing.isdisjoint(k.digest for p in plans for k in p.planned)
        }

    def model(self, model: fleet.ServedModel) -> dict[str, Any]:
        """A model version with a row for each generation that has nodes or replicas."""
        # An external model is on no node.
        here = {name for name, num in self.nodes.items() if num and not model.external_json}
        here |= self._replicas[model.name, model.version].keys()
        rows = [self._row(model, generation) for generation in sorted(here - {""} or {""})]
        fields = {"name": model.name, "version": model.version, "weight": model.weight}
        return fields | {"attention": min(row["attention"] for row in rows), "rows": rows}

    def _row(self, model: fleet.ServedModel, generation: str) -> dict[str, Any]:
        place = (model.name, model.version, generation)
        attention, state, why = self._state(model, generation)
        served = self._served.get(place)
        engine = self._view.engines.get(served.key) if served else None
        reports = self._replicas[place[:2]][generation]
        fallbacks = sorted({fallback_name(each) for each in reports if each.fallback_reason})
        with_what = f"fallback ({', '.join(fallbacks)})" if fallbacks else ""
        troubles = list(self._troubles(place[:2], generation))
        if troubles and not model.is_unloaded:
            attention = min(attention, Attention.FAILED)
        return {
            "generation": generation,
            "attention": attention.value,
            "state": state,
            "why": why[:_MAX_WORDS],
            "engine": served.why if served and served.key else with_what,
            "is_building": place in self._building,
            "trouble": troubles[0][:_MAX_WORDS] if troubles else "",
            "num_troubles": len(troubles),
            **self._measured(engine, generation),
        }

    def _state(self, model: fleet.ServedModel, generation: str) -> tuple[Attention, str, str]:
        """How urgent it is, the state in a word or two, and why it is so."""
        if model.is_unloaded:
            return Attention.UNLOADED, "unloaded", ""
        if model.external_json and model.state == "READY":
            return Attention.READY, "ready", ExternalModel.from_json(model.external_json).words
        if served := self._served.get((model.name, model.version, generation)):
            if served.kind is EventKind.ENGINE_SERVING:
                return Attention.READY, "ready", model.unplaced
            return Attention.FALLBACK, "on the fallback", served.why
        # One that does not know its device yet may be of this generation.
        replicas = self._replicas[model.name, model.version]
        reports = [*replicas[generation], *replicas[""]]
        for report in reports:
            if report.state == fleet.REPLICA_STATE_FAILED:
                return Attention.DOWN, "failed", report.detail or model.reason
            if report.replica_id in self._lost:
                return Attention.DOWN, "lost", "its replica's connection to the controller broke"
        if model.unplaced:
            return Attention.DOWN, "no room", model.unplaced
        if model.state == "UNAVAILABLE":
            return Attention.DOWN, "unavailable", model.reason
        words = next(filter(None, map(loading_words, reports)), model.reason)
        # A version is READY as soon as another generation has a replica of it.
        state = "loading" if model.state == "READY" else model.state.lower()
        # Not loaded, as no request asks for it.
        is_standby = model.state == DeploymentState.STANDBY
        return Attention.READY if is_standby else Attention.ON_THE_WAY, state, words

    def _troubles(self, key: tuple[str, int], generation: str) -> Iterator[str]:
        """Builds and proofs that failed, less those that refuse what `auto` merely tries."""
        version = self._versions.get(key)
        if not version or key not in self._troubled:
            return
        pools = (pool for pool in self._pools if pool.node_class.generation == generation)
        for plan in filter(None, (self._view.plan_of(version, pool) for pool in pools)):
            for status in self._view.statuses(version, plan, RetryPolicy()):
                is_refused = status.state is KeyState.PROOF_FAILED and is_tried(
                    version.recipe, status.planned.key.precision
                )
                if status.state in _FAILURES and not is_refused:
                    yield f"{status.planned.words}: {status.state.words}: {status.reason}"

    def _measured(self, engine: PublishedEngine | None, generation: str) -> dict[str, Any]:
        """Times faster than the fallback in the run that counts, and the power of its proof."""
        if engine is None:
            return _measured((), ())
        runs = self._view.runs.get(engine.manifest.key.master_digest, ())
        marks = tuple(run.created_at for run in runs)
        facts = (engine.digest, engine.proof.created_at, generation, marks)
        made = self._known.get(facts)
        if made is None:
            timings = deciding(engine_history(engine, generation, runs))
            made = _measured(timings, engine.proof.power)
        self.measured[facts] = made
        return made


def _measured(timings: Sequence[Timing], checks: Sequence[PowerCheck]) -> dict[str, Any]:
    speed = speed_over_fallback(timings)
    num_seen = sum(len(check.refused) + len(check.tightened) for check in checks)
    return {
        "times": speed and float(f"{speed:.3g}"),
        "is_wild": is_wild(timings),
        "num_seen": num_seen,
        "num_tried": num_seen + sum(len(check.blind) for check in checks),
        "blind": sorted({name for check in checks for name in check.blind}),
    }
