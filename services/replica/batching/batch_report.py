"""What is recorded of one run of the engine."""

from typing import NamedTuple, Self

from services.replica.engine.worker import BatchTimes
from services.replica.request.infer_call import InferCall


class BatchReport(NamedTuple):
    """One run of the engine, for statistics and metrics; give fields by name.

    Attributes:
        rows: rows of each request in the batch.
        queued_s: seconds that each request waited.
        times: seconds of each step; None when the engine failed.
        forming_s: seconds from when the engine was free and a request waited to the run.
        reply_s: seconds in which the answers were written.
        calls: the requests; what they lie in is lent, so keep none of them.
    """

    rows: tuple[int, ...]
    queued_s: tuple[float, ...]
    times: BatchTimes | None
    forming_s: float = 0.0
    reply_s: float = 0.0
    calls: tuple[InferCall, ...] = ()


class BatcherTimes(NamedTuple):
    """What a batcher did since it began.

    Attributes:
        busy_s: seconds in which batches ran.
        pressed_s: of these, of batches that had waited for the one before.
        num_calls: calls in all of them.
    """

    busy_s: float = 0.0
    pressed_s: float = 0.0
    num_calls: int = 0

    def after(self, ran_s: float, num_calls: int, *, is_pressed: bool) -> Self:
        """With one more batch.

        Args:
            ran_s: seconds that it took.
            num_calls: in it.
            is_pressed: it had waited for the one before.
        """
        pressed_s = self.pressed_s + ran_s * is_pressed
        return type(self)(self.busy_s + ran_s, pressed_s, self.num_calls + num_calls)
