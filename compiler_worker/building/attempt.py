"""Keeps the account of one attempt to build a key: stages, seconds, last log lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from compiler_worker.children.process import ChildOutcome
from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.model.manifest import Proof
from services.contracts.process.disk_room import is_of_full_disk
from services.contracts.text.moments import timestamp


class Attempt:
    """The account of one attempt; `record` makes the document that is kept."""

    def __init__(
        self,
        key: BuildKey,
        worker: WorkerContext,
        stage: Stage = Stage.OPEN,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the attempt now.

        Args:
            key: what is built.
            worker: its `on_progress` is called with each event.
            stage: the one that runs first; later events of the child name others.
            clock: seconds; durations of stages are taken from it.
        """
        self.key = key
        self._worker = worker
        self._started_at = timestamp()
        self._clock = clock
        self._started_s = clock()
        self._stage = stage
        self._durations_s: dict[str, float] = {}
        self._log_tail: tuple[str, ...] = ()
        self._is_counted = True

    def report(self, event: ChildEvent) -> None:
        """Report an event with this key."""
        self._worker.on_progress(self.key, event)

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Enter a stage that this process does itself, and time it."""
        self._stage = stage
        self.report(ChildEvent(stage=stage))
        started = self._clock()
        yield
        self._durations_s[stage] = self._clock() - started
        self.report(ChildEvent(ended_stage=stage, duration_s=self._durations_s[stage]))

    def follow(self, outcome: ChildOutcome[Any]) -> None:
        """Take over the child's account: stage, seconds, last log lines, whose fault it was."""
        self._stage = outcome.stage
        self._is_counted = outcome.is_counted
        for stage, duration_s in outcome.durations_s.items():
            self._durations_s[stage] = self._durations_s.get(stage, 0.0) + duration_s
        self._log_tail = outcome.log_tail

    def failed(self, error: Exception, reason: str = "") -> BuildRecord:
        """The record of an attempt that an error ended, in its words or others."""
        self._is_counted &= not is_of_full_disk(error, self._worker.settings.cache_dir)
        return self.record(BuildOutcome.FAILED, reason=reason or str(error))

    def record(
        self, outcome: BuildOutcome, *, reason: str = "", proof: Proof | None = None
    ) -> BuildRecord:
        """The record of this attempt; log lines are kept of what went wrong.

        Args:
            outcome: how the attempt ended.
            reason: the error in words; "" where nothing failed.
            proof: of the engine; None when it was not reached.
        """
        return BuildRecord(
            key=self.key,
            outcome=outcome,
            stage=self._stage,
            reason=reason,
            log_tail=() if outcome.is_good else self._log_tail,
            is_counted=self._is_counted,
            proof=proof,
            stage_durations_s=self._seconds(outcome),
            started_at=self._started_at,
        )

    def _seconds(self, outcome: BuildOutcome) -> dict[str, float]:
        """Seconds by stage; one that failed reported none, and has what the others leave.

        When an attempt ended, and so when the next one is due, follows from their sum.
        """
        if outcome is not BuildOutcome.FAILED or self._stage in self._durations_s:
            return self._durations_s
        left_s = self._clock() - self._started_s - sum(self._durations_s.values())
        return {**self._durations_s, self._stage: left_s}
