"""What a replica records, on the catalogue's own objects."""

from services.replica.batching.batch_report import BatchReport
from services.replica.batching.queue import Dropped
from services.replica.batching.run_shapes import elements_of
from services.replica.engine.loaded_engine import FoundBy, LoadedEngine
from services.telemetry import catalog
from services.telemetry.recorder import NullRecorder, Observer, Recorder

_NOTHING: Observer = NullRecorder().observer(catalog.COMPUTE_DURATION)
# All but the engine's own, in the order of a request's way.
_STAGES = (
    catalog.QUEUE_DURATION,
    catalog.FORMING_DURATION,
    catalog.PAD_DURATION,
    catalog.REPLY_DURATION,
)


class ReplicaMetrics:
    """Records for one model version on one device, with the engine in use as label.

    What every batch adds to counters is summed here and recorded by `show_now`: each record
    costs as much as a good part of a small request.
    """

    def __init__(self, recorder: Recorder, model: str, version: str, generation: str) -> None:
        """Bind the labels that never change.

        Args:
            recorder: takes the metrics.
            model: label of all.
            version: label of all.
            generation: of the device, as `cuda-sm90`; label of what an engine does.
        """
        self._recorder = recorder
        self._labels = {"model": model, "version": version}
        self._place = self._labels | {"generation": generation}
        self._in_use: LoadedEngine | None = None
        self._rows = 0
        self._busy_s = 0.0
        self._observe_rows = recorder.observer(catalog.BATCH_SIZE, **self._labels)
        # Of each stage, by the engine in use: nothing runs before there is one.
        self._observe_queued_s = self._observe_forming_s = self._observe_pad_s = _NOTHING
        self._observe_compute_s = self._observe_reply_s = _NOTHING
        self._observe_size: dict[str, Observer] = {}
        self._real = 0
        self._padded = 0

    def engine_changed(self, loaded: LoadedEngine) -> None:
        """Another engine serves from now on; a fallback is counted with its reasons."""
        self.add_sums()
        before = self._in_use
        # The same choice: it was counted when what answers at once came.
        is_counted = (
            before is not None
            and before.is_interim
            and before.fallback_reason == loaded.fallback_reason
        )
        if self._in_use:
            self._set_in_use(self._in_use, 0)
        self._in_use = loaded
        self._set_in_use(loaded, 1)
        self._observe_compute_s = self._recorder.observer(
            catalog.COMPUTE_DURATION, **self._labels, **_of_engine(loaded)
        )
        here = self._place | {"kind": loaded.kind}
        (
            self._observe_queued_s,
            self._observe_forming_s,
            self._observe_pad_s,
            self._observe_reply_s,
        ) = (self._recorder.observer(stage, **here) for stage in _STAGES)
        self._recorder.observe(
            catalog.ENGINE_LOAD_DURATION,
            loaded.load_duration_s,
            kind=loaded.kind,
            **self._labels,
        )
        if loaded.fallback_reason and not is_counted:
            reason = loaded.fallback_reason.value
            self._recorder.count(catalog.FALLBACKS, 1, reason=reason, **self._place)
        refutation = loaded.refutation
        if refutation and refutation.found_by is not FoundBy.UNSUPPORTED:
            reason = refutation.found_by.value
            self._recorder.count(catalog.FALLBACKS_REFUTED, 1, reason=reason, **self._place)

    def engine_returned(self, bad: LoadedEngine) -> None:
        """An engine failed in service, and the one before it serves again."""
        self._recorder.count(catalog.ENGINE_RETURNS, 1, kind=bad.kind, **self._place)

    def record_batch(self, report: BatchReport) -> None:
        """Add one run of the engine."""
        num_rows = sum(report.rows)
        self._rows += num_rows
        self._observe_rows(num_rows)
        self._observe_forming_s(report.forming_s)
        for queued_s in report.queued_s:
            self._observe_queued_s(queued_s)
        if (times := report.times) and self._in_use:
            self._busy_s += times.compute_infer_s
            self._observe_pad_s(times.compute_input_s)
            self._observe_compute_s(times.compute_infer_s)
            self._observe_reply_s(times.compute_output_s + report.reply_s)

        self._record_sizes(report)

    def record_dropped(self, reason: Dropped) -> None:
        """Count a request that got no answer of the engine, or got it too late."""
        self._recorder.count(catalog.QUEUE_DROPPED, 1, reason=reason.value, **self._labels)

    def _record_sizes(self, report: BatchReport) -> None:
        real = 0
        for call in report.calls:
            real += elements_of(call.sizes)
            for dim, size in call.sizes.items():
                self._size_observer(dim)(size)
        if report.times:
            self._real += real
            self._padded += report.times.num_elements - real

    def _size_observer(self, dim: str) -> Observer:
        observer = self._observe_size.get(dim)
        if observer is None:
            observer = self._recorder.observer(catalog.REQUEST_SIZE, dimension=dim, **self._labels)
            self._observe_size[dim] = observer
        return observer

    def add_sums(self) -> None:
        """Record what batches added to counters since the last time, and publish the rest."""
        rows = self._rows
        self._rows = 0
        busy_s = self._busy_s
        self._busy_s = 0.0
        real = self._real
        self._real = 0
        padded = self._padded
        self._padded = 0
        self._recorder.count(catalog.ROWS, rows, **self._labels)
        self._recorder.count(catalog.REAL_ELEMENTS, real, **self._labels)
        self._recorder.count(catalog.PADDED_ELEMENTS, padded, **self._labels)
        if self._in_use:
            self._recorder.count(
                catalog.ENGINE_BUSY, busy_s, **self._labels, **_of_engine(self._in_use)
            )
        self._recorder.publish()

    def show_now(self, num_waiting: int, queue_used: float) -> None:
        """Say how full the queue is, and again which engine is in use; record sums.

        Ray drops a gauge that is not set anew within two of its export periods.
        """
        self.add_sums()
        if self._in_use:
            self._set_in_use(self._in_use, 1)
        self._recorder.set(catalog.QUEUE_REQUESTS, num_waiting, **self._place)
        self._recorder.set(catalog.QUEUE_USED, queue_used, **self._place)

    def _set_in_use(self, loaded: LoadedEngine, value: float) -> None:
        self._recorder.set(
            catalog.ENGINE_IN_USE,
            value,
            precision=loaded.precision,
            digest=loaded.digest,
            **self._labels,
            **_of_engine(loaded),
        )


def _of_engine(loaded: LoadedEngine) -> dict[str, str]:
    return {"generation": loaded.generation, "kind": loaded.kind}
