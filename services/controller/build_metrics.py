"""Builds and proofs as metrics, counted from what the store remembers of them.

A compiler runs for seconds, anywhere, so it cannot be scraped. Totals go on where the store is
when the controller starts, or begin at 0 where it remembers too much to be read then; states and
engines are those of the store.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from services.contracts.build_key import BuildKey
from services.contracts.errors import SmeltError, StoreError
from services.contracts.history import BuildHistory
from services.contracts.manifest import (
    BuildOutcome,
    BuildRecord,
    ModelVersion,
    Proof,
    ProofOutcome,
    PublishedEngine,
)
from services.controller.planned_keys import PlannedKeys
from services.telemetry import catalog
from services.telemetry.metric import Metric
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge

logger = logging.getLogger(__name__)

_BUILD_STAGE = "build"
_Series = tuple[tuple[str, str], ...]


class EngineSource(Protocol):
    """What is read of the registry."""

    def at_one_moment(self) -> Self:
        """The same, which lists each folder of the store once."""
        ...

    def model_names(self) -> list[str]:
        """Names of all models."""
        ...

    def model_version(self, name: str, version: int | None = None) -> ModelVersion:
        """One version, the newest by default."""
        ...

    def engines(self, master_digest: str | None = None) -> list[PublishedEngine]:
        """Published engines with their newest proof."""
        ...

    def engine_keys(self) -> list[str]:
        """Keys of all that is published of engines."""
        ...

    def build_record_keys(self) -> list[str]:
        """Keys of the records of all attempts."""
        ...

    def prefetch_last_records(self, key_digests: Iterable[str]) -> None:
        """Read what `last_build_record` needs of several keys at once."""
        ...

    def last_build_record(self, key_digest: str) -> BuildRecord | None:
        """The newest attempt to build a key; None without one."""
        ...


@dataclass(frozen=True)
class _Attempt:
    """What is kept in mind of the newest attempt at a key.

    Attributes:
        place: values of the labels of its key.
    """

    master_digest: str
    place: tuple[str, ...]
    outcome: BuildOutcome
    started_at: str


class BuildMetrics:
    """Counts what is new in the store, and shows where the newest versions stand."""

    def __init__(
        self,
        recorder: Recorder,
        source: EngineSource,
        history: BuildHistory,
        planned: PlannedKeys | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            recorder: of CONTROLLER_METRICS.
            source: of versions and engines.
            history: of builds and proofs.
            planned: keys that are wanted now: how others stand concerns nobody any more.
        """
        self._recorder, self._source, self._history = recorder, source, history
        self._planned = planned or PlannedKeys()
        self._engines = ShownGauge(recorder, catalog.ENGINES)
        self._states = ShownGauge(recorder, catalog.BUILD_STATE)
        # Counted together with the published ones, which the store may fail to give.
        self._new_proofs: Counter[_Series] = Counter()
        # By key digest, of the masters that are the newest of a model.
        self._newest: dict[str, _Attempt] = {}

    async def follow(self, period_s: float) -> None:
        """Look at the store at intervals, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except StoreError as error:
                logger.warning("builds are not counted now, the next look tries again: %s", error)
            except Exception:
                # Whatever it is: a task that ended would leave figures that never change.
                logger.exception("builds are not counted now; the next look tries again")
            # Compilers write from anywhere, and a store tells nobody.
            await asyncio.sleep(period_s)

    def look(self) -> None:
        """Read the store once; raises StoreError."""
        # What the build loop has listed a moment ago need not be listed again.
        moment: EngineSource = self._planned.moment or self._source.at_one_moment()
        builds: Counter[_Series] = Counter()
        for record in self._history.new_build_records(moment.build_record_keys()):
            builds[*_labels(record.key).items(), ("outcome", record.outcome.value)] += 1
            self._take_build(record)
        self._count(catalog.BUILDS, builds, BuildOutcome)
        for key, proof in self._history.new_proofs(moment.engine_keys()):
            self._take_proof(key, proof)
        self._count(catalog.PROOFS, self._new_proofs, ProofOutcome)
        self._new_proofs.clear()
        self._show_newest(moment)

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
        labels = _labels(record.key)
        if (seconds := record.stage_durations_s.get(_BUILD_STAGE)) is not None:
            self._recorder.observe(catalog.BUILD_DURATION, seconds, **labels)
        if record.outcome is BuildOutcome.PROOF_FAILED and record.proof:
            # It was not published, so its proof stands here only.
            self._take_proof(record.key, record.proof)
        self._take_attempt(record)

    def _take_attempt(self, record: BuildRecord) -> None:
        digest = record.key.digest()
        known = self._newest.get(digest)
        if known is None or known.started_at <= record.started_at:
            place = tuple(_labels(record.key).values())
            self._newest[digest] = _Attempt(
                record.key.master_digest, place, record.outcome, record.started_at
            )

    def _take_proof(self, key: BuildKey, proof: Proof) -> None:
        labels = _labels(key)
        if proof.outcome is not ProofOutcome.NOT_RUN:
            self._recorder.observe(catalog.PROOF_DURATION, proof.duration_s, **labels)
        self._new_proofs[*labels.items(), ("outcome", proof.outcome.value)] += 1

    def _show_newest(self, moment: EngineSource) -> None:
        moment.prefetch_last_records(self._planned.all() - self._newest.keys())
        engines: dict[tuple[str, ...], float] = {}
        states: dict[tuple[str, ...], float] = {}
        masters: set[str] = set()
        for name in moment.model_names():
            try:
                version = moment.model_version(name)
                masters.add(version.master.digest)
                planned = self._planned.of(name, version.version)
                published = moment.engines(version.master.digest)
                if planned is not None:
                    published = [engine for engine in published if engine.digest in planned]
                    self._recall(moment, planned)
            except SmeltError as error:
                logger.warning("engines of model '%s' are not shown: %s", name, error)
                continue
            served = (name, str(version.version))
            engines |= _engine_series(served, published)
            states |= self._state_series(served, version.master.digest, planned)
        self._engines.show(engines)
        self._states.show(states)
        self._newest = {d: a for d, a in self._newest.items() if a.master_digest in masters}

    def _recall(self, moment: EngineSource, planned: frozenset[str]) -> None:
        """Read the newest attempts that were made before this process began, or were dropped."""
        for digest in planned - self._newest.keys():
            if record := moment.last_build_record(digest):
                self._take_attempt(record)

    def _state_series(
        self, served: tuple[str, str], master_digest: str, planned: frozenset[str] | None
    ) -> dict[tuple[str, ...], float]:
        newest: dict[tuple[str, ...], _Attempt] = {}
        for digest, attempt in self._newest.items():
            if attempt.master_digest != master_digest:
                continue
            known = newest.get(attempt.place)
            is_newer = known is None or known.started_at <= attempt.started_at
            if is_newer and (planned is None or digest in planned):
                newest[attempt.place] = attempt
        return {
            (*served, *place, outcome.value): float(attempt.outcome is outcome)
            for place, attempt in newest.items()
            for outcome in BuildOutcome
        }


def _engine_series(
    served: tuple[str, str], published: Iterable[PublishedEngine]
) -> Mapping[tuple[str, ...], float]:
    """Number of engines by the values of the labels of ENGINES; 0 for other outcomes."""
    series: Counter[tuple[str, ...]] = Counter()
    for engine in published:
        key = engine.manifest.key
        for outcome in ProofOutcome:
            is_so = engine.proof.outcome is outcome
            series[*served, key.generation, key.kind.value, outcome.value] += is_so
    return series


def _labels(key: BuildKey) -> dict[str, str]:
    return {
        "generation": key.generation,
        "kind": key.kind.value,
        "precision": key.precision.value,
    }
