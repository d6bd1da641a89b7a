"""What a replica records, on the catalogue's own objects."""

from collections.abc import Callable

from services.replica.batcher import BatchReport
from services.replica.loaded_engine import LoadedEngine
from services.telemetry import catalog
from services.telemetry.recorder import Recorder


class ReplicaMetrics:
    """Records for one model version, with the engine in use as label.

    What every batch adds to counters is summed here and recorded by `show_now`: each record
    costs as much as a good part of a small request.
    """

    def __init__(self, recorder: Recorder, model: str, version: str) -> None:
        """Bind the labels that never change."""
        self._recorder = recorder
        self._labels = {"model": model, "version": version}
        self._in_use: LoadedEngine | None = None
        self._rows, self._busy_s = 0, 0.0
        self._observe_rows = recorder.observer(catalog.BATCH_SIZE, **self._labels)
        self._observe_queued_s = recorder.observer(catalog.QUEUE_DURATION, **self._labels)
        self._observe_compute_s: Callable[[float], None] = lambda _: None

    def engine_changed(self, loaded: LoadedEngine, generation: str) -> None:
        """Another engine serves from now on; a fallback is counted with its reason."""
        self.add_sums()
        if self._in_use:
            self._set_in_use(self._in_use, 0)
        self._in_use = loaded
        self._set_in_use(loaded, 1)
        self._observe_compute_s = self._recorder.observer(
            catalog.COMPUTE_DURATION, **self._labels, **_of_engine(loaded)
        )
        self._recorder.observe(
            catalog.ENGINE_LOAD_DURATION,
            loaded.load_duration_s,
            kind=loaded.kind,
            **self._labels,
        )
        if loaded.fallback_reason:
            reason = loaded.fallback_reason.value
            self._recorder.count(
                catalog.FALLBACKS, 1, generation=generation, reason=reason, **self._labels
            )

    def engine_returned(self, bad: LoadedEngine, generation: str) -> None:
        """An engine failed in service, and the one before it serves again."""
        self._recorder.count(
            catalog.ENGINE_RETURNS, 1, generation=generation, kind=bad.kind, **self._labels
        )

    def record_batch(self, report: BatchReport) -> None:
        """Add one run of the engine."""
        num_rows = sum(report.rows)
        self._rows += num_rows
        self._observe_rows(num_rows)
        for queued_s in report.queued_s:
            self._observe_queued_s(queued_s)
        if report.times and self._in_use:
            compute_s = report.times.compute_infer_s
            self._busy_s += compute_s
            self._observe_compute_s(compute_s)

    def add_sums(self) -> None:
        """Record what batches added to counters since the last time."""
        rows, self._rows = self._rows, 0
        busy_s, self._busy_s = self._busy_s, 0.0
        self._recorder.count(catalog.ROWS, rows, **self._labels)
        if self._in_use:
            self._recorder.count(
                catalog.ENGINE_BUSY, busy_s, **self._labels, **_of_engine(self._in_use)
            )

    def show_now(self, num_waiting: int, max_waiting: int, generation: str) -> None:
        """Say how full the queue is, and again which engine is in use; record sums.

        Ray drops a gauge that is not set anew within two of its export periods.
        """
        self.add_sums()
        if self._in_use:
            self._set_in_use(self._in_use, 1)
        labels = self._labels | {"generation": generation}
        self._recorder.set(catalog.QUEUE_REQUESTS, num_waiting, **labels)
        self._recorder.set(catalog.QUEUE_LIMIT, max_waiting, **labels)

    def _set_in_use(self, loaded: LoadedEngine, value: float) -> None:
        self._recorder.set(
            catalog.ENGINE_IN_USE,
            value,
            generation=loaded.generation,
            kind=loaded.kind,
            precision=loaded.precision,
            digest=loaded.digest,
            **self._labels,
        )


def _of_engine(loaded: LoadedEngine) -> dict[str, str]:
    return {"generation": loaded.generation, "kind": loaded.kind}
