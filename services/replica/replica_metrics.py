"""What a replica records, on the catalogue's own objects."""

from services.replica.batcher import BatchReport
from services.replica.loaded_engine import LoadedEngine
from services.telemetry import catalog
from services.telemetry.recorder import Recorder


class ReplicaMetrics:
    """Records for one model version, with the engine in use as label."""

    def __init__(self, recorder: Recorder, model: str, version: str) -> None:
        """Bind the labels that never change."""
        self._recorder = recorder
        self._labels = {"model": model, "version": version}
        self._in_use: LoadedEngine | None = None

    def engine_changed(self, loaded: LoadedEngine, generation: str) -> None:
        """Another engine serves from now on; a fallback is counted with its reason."""
        if self._in_use:
            self._set_in_use(self._in_use, 0)
        self._in_use = loaded
        self._set_in_use(loaded, 1)
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
        record, labels = self._recorder, self._labels
        num_rows = sum(report.rows)
        record.observe(catalog.BATCH_SIZE, num_rows, **labels)
        record.count(catalog.ROWS, num_rows, **labels)
        for queued_s in report.queued_s:
            record.observe(catalog.QUEUE_DURATION, queued_s, **labels)
        if report.times and self._in_use:
            compute_s = report.times.compute_infer_s
            of_engine = labels | {
                "generation": self._in_use.generation,
                "kind": self._in_use.kind,
            }
            record.observe(catalog.COMPUTE_DURATION, compute_s, **of_engine)
            record.count(catalog.ENGINE_BUSY, compute_s, **of_engine)

    def show_now(self, num_waiting: int, max_waiting: int, generation: str) -> None:
        """Say how full the queue is, and again which engine is in use.

        Ray drops a gauge that is not set anew within two of its export periods.
        """
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
