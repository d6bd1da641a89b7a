"""Builds and proofs as metrics, counted from what the store remembers of them.

A compiler runs for seconds, anywhere, so it cannot be scraped. Totals go on where the store is
when the controller starts, or begin at 0 where it remembers too much to be read then; states and
engines are those of the store.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import SmeltError
from services.contracts.model.manifest import ModelVersion, Proof, ProofOutcome, PublishedEngine
from services.contracts.model.precisions import is_tried
from services.contracts.registry.registry import Registry
from services.contracts.store.history import BuildHistory
from services.controller.build.build_view import FleetView, distinct_pools
from services.telemetry import catalog
from services.telemetry.metric import Metric
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge

logger = logging.getLogger(__name__)

_BUILD_STAGE = "build"
# The outcome of a proof that refuses a precision which `auto` tried.
_REFUSED = "refused"
_Series = tuple[tuple[str, str], ...]
_NO_ATTEMPT = ("", BuildOutcome.FAILED)
_OUTCOMES = {
    ProofOutcome.PASSED: BuildOutcome.PROVEN,
    ProofOutcome.FAILED: BuildOutcome.PROOF_FAILED,
    ProofOutcome.NOT_RUN: BuildOutcome.BUILT,
}


# What a view was read from: its keys show what is new, and listing it again takes no request.
LatestView = Callable[[], tuple[FleetView, Registry] | None]


class BuildMetrics:
    """Counts what is new in the store, and shows where the newest versions stand.

    Attributes:
        seen: what it looked at last.
    """

    def __init__(self, recorder: Recorder, history: BuildHistory, latest: LatestView) -> None:
        """Nothing is read yet.

        Args:
            recorder: of CONTROLLER_METRICS.
            history: of builds and proofs.
            latest: the fleet as the build loop saw it last; None before, and while another
                controller builds for this store.
        """
        self._recorder = recorder
        self._history = history
        self._latest = latest
        self.seen: tuple[FleetView, Registry] | None = None
        self._engines = ShownGauge(recorder, catalog.ENGINES)
        self._states = ShownGauge(recorder, catalog.BUILD_STATE)
        # Counted together with the published ones, which the store may fail to give.
        self._new_proofs: Counter[_Series] = Counter()

    async def follow(self, period_s: float) -> None:
        """Look at the store at intervals, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except SmeltError as error:
                logger.warning(
                    "build metrics are not updated; retrying at the next sync: %s", error
                )
            except Exception:
                # Whatever it is: a task that ended would leave figures that never change.
                logger.exception("build metrics are not updated; retrying at the next sync")
            # Compilers write from anywhere, and a store has no events.
            await asyncio.sleep(period_s)

    def look(self) -> None:
        """Count what is new, and show what the fleet has; raises StoreError."""
        self.seen = latest = self._latest()
        if latest is None:
            return
        view, moment = latest
        builds: Counter[_Series] = Counter()
        for record in self._history.new_build_records(moment.build_record_keys()):
            builds[*record.key.metric_labels().items(), ("outcome", record.outcome.value)] += 1
            self._take_build(record)
        self._count(catalog.BUILDS, builds, BuildOutcome)
        for key, proof in self._history.new_proofs(moment.engine_keys()):
            self._take_proof(key, proof)
        self._count(catalog.PROOFS, self._new_proofs, ProofOutcome)
        self._new_proofs.clear()
        self._show_newest(view)

    def _count(self, metric: Metric, amounts: Counter[_Series], outcomes: type[StrEnum]) -> None:
        """Add to each series once: a scrape in between must not see a total that shrank."""
        for series, amount in amounts.items():
            self._recorder.count(metric, float(amount), **dict(series))
        # All outcomes, so that a first failure is a change and not a new series.
        for series in amounts:
            for other in outcomes:
                labels = dict(series) | {"outcome": other.value}
                self._recorder.count(metric, 0.0, **labels)

    def _take_build(self, record: BuildRecord) -> None:
        labels = record.key.metric_labels()
        if (seconds := record.stage_durations_s.get(_BUILD_STAGE)) is not None:
            self._recorder.observe(catalog.BUILD_DURATION, seconds, **labels)
        if record.outcome is BuildOutcome.PROOF_FAILED and record.proof:
            # It was not published, so its proof stands here only.
            self._take_proof(record.key, record.proof)

    def _take_proof(self, key: BuildKey, proof: Proof) -> None:
        labels = key.metric_labels()
        if proof.outcome is not ProofOutcome.NOT_RUN:
            self._recorder.observe(catalog.PROOF_DURATION, proof.duration_s, **labels)
        self._new_proofs[*labels.items(), ("outcome", proof.outcome.value)] += 1

    def _show_newest(self, view: FleetView) -> None:
        engines: dict[tuple[str, ...], float] = {}
        states: dict[tuple[str, ...], float] = {}
        for version in filter(view.is_newest, view.versions):
            planned = _planned_keys(view, version)
            published = [view.engines[digest] for digest in planned if digest in view.engines]
            engines |= _engine_series(version, published)
            states |= _state_series(version, view, planned)
        self._engines.show(engines)
        self._states.show(states)


def _planned_keys(view: FleetView, version: ModelVersion) -> Mapping[str, BuildKey]:
    """Keys of the plans for the nodes that are there, by digest; others concern no node."""
    plans = (view.plan_of(version, pool) for pool in distinct_pools(view.pools))
    return {each.digest: each.key for plan in plans if plan for each in plan.planned}


def _outcome(version: ModelVersion, key: BuildKey, outcome: BuildOutcome | ProofOutcome) -> str:
    """The outcome as a label: a proof that refuses what `auto` tries is no failure."""
    # By identity: what failed to be built has the value of a proof that failed.
    is_refused = outcome is BuildOutcome.PROOF_FAILED or outcome is ProofOutcome.FAILED
    return _REFUSED if is_refused and is_tried(version.recipe, key.precision) else outcome.value


def _state_series(
    version: ModelVersion, view: FleetView, planned: Mapping[str, BuildKey]
) -> dict[tuple[str, ...], float]:
    """How the newest attempt of each place ended, by the values of the labels of BUILD_STATE."""
    newest: dict[tuple[str, ...], tuple[str, str]] = {}
    for digest, key in planned.items():
        place = tuple(key.metric_labels().values())
        at, outcome = _last_attempt(view, digest)
        newest[place] = max((at, _outcome(version, key, outcome)), newest.get(place, _NO_ATTEMPT))
    return {
        (version.name, str(version.version), *place, outcome): float(found == outcome)
        for place, (at, found) in newest.items()
        if at
        for outcome in (*BuildOutcome, _REFUSED)
    }


def _last_attempt(view: FleetView, digest: str) -> tuple[str, BuildOutcome]:
    """When the last attempt at a key was made and how it ended; of older ones by their engine."""
    found = [(record.started_at, record.outcome) for record in view.records.get(digest, ())[-1:]]
    if engine := view.engines.get(digest):
        proof = engine.proof
        found.append((max(engine.manifest.created_at, proof.created_at), _OUTCOMES[proof.outcome]))
    return max(found, default=_NO_ATTEMPT)


def _engine_series(
    version: ModelVersion, published: Iterable[PublishedEngine]
) -> Mapping[tuple[str, ...], float]:
    """Number of engines by the values of the labels of ENGINES; 0 for other outcomes."""
    series: Counter[tuple[str, ...]] = Counter()
    for engine in published:
        key = engine.manifest.key
        found = _outcome(version, key, engine.proof.outcome)
        place = (version.name, str(version.version), key.generation, key.kind.value)
        for outcome in (*ProofOutcome, _REFUSED):
            series[*place, outcome] += found == outcome
    return series
