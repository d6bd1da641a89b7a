"""Counts and times of a replica, in the protocol's own terms."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from services.pb import open_inference_v2_pb2 as pb
from services.replica.batching.batch_report import BatchReport
from services.replica.engine.worker import BatchTimes

_NS = 1_000_000_000
# Sizes of batches that are counted separately. Without buckets clients choose them, and each takes
# memory and for time of the event loop whenever statistics are read.
_MAX_SIZES = 256


@dataclass
class _Total:
    """A count and the sum of its seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds * count

    def message(self) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=self.count, ns=round(self.seconds * _NS))


@dataclass
class _Compute:
    """The three steps of a batch; their counts are always equal, as perf_analyzer demands."""

    count: int = 0
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0

    def add(self, times: BatchTimes, count: int = 1) -> None:
        self.count += count
        self.input_s += times.compute_input_s * count
        self.infer_s += times.compute_infer_s * count
        self.output_s += times.compute_output_s * count

    def messages(self) -> dict[str, pb.StatisticDuration]:
        seconds = {
            "compute_input": self.input_s,
            "compute_infer": self.infer_s,
            "compute_output": self.output_s,
        }
        return {step: _Total(self.count, total_s).message() for step, total_s in seconds.items()}


class Statistics:
    """Sums since the replica became ready; used from the event loop alone.

    The first 256 sizes of batches are counted separately; others as the next power of two.
    """

    def __init__(
        self, name: str, version: str, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Start from zero.

        Args:
            name: of the model.
            version: of the model.
            wall_clock: POSIX seconds, of which the time of the last inference is made.
        """
        self._name = name
        self._version = version
        self._wall_clock = wall_clock
        self._success = _Total()
        self._fail = _Total()
        self._queue = _Total()
        self._compute = _Compute()
        self._by_rows: dict[int, _Compute] = defaultdict(_Compute)
        self._num_rows = 0
        self._num_runs = 0
        self._last_inference_ms = 0

    def record_batch(self, report: BatchReport) -> None:
        """Add one run of the engine; runs that failed count no request here."""
        self._last_inference_ms = int(self._wall_clock() * 1000)
        if report.times is None:
            return
        self._queue.count += len(report.queued_s)
        self._queue.seconds += sum(report.queued_s)
        self._compute.add(report.times, count=len(report.rows))
        size = num_rows = sum(report.rows)
        if len(self._by_rows) >= _MAX_SIZES and size not in self._by_rows:
            size = 1 << max(size - 1, 0).bit_length()
        self._by_rows[size].add(report.times)
        self._num_rows += num_rows
        self._num_runs += 1

    def record_success(self, duration_s: float) -> None:
        """Add a request that was answered, with its seconds inside the replica."""
        self._success.add(duration_s)

    def record_failure(self, duration_s: float) -> None:
        """Add a request that failed for whatever reason, or was cancelled: as Triton counts."""
        self._fail.add(duration_s)

    def message(self) -> pb.ModelStatistics:
        """The protocol's form."""
        return pb.ModelStatistics(
            name=self._name,
            version=self._version,
            last_inference=self._last_inference_ms,
            inference_count=self._num_rows,
            execution_count=self._num_runs,
            inference_stats=pb.InferStatistics(
                success=self._success.message(),
                fail=self._fail.message(),
                queue=self._queue.message(),
                **self._compute.messages(),
            ),
            batch_stats=[
                pb.InferBatchStatistics(batch_size=rows, **compute.messages())
                for rows, compute in sorted(self._by_rows.items())
            ],
        )
