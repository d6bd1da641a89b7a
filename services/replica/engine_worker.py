"""Runs batches on the engine in use, and knows how healthy it is."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from services.contracts.errors import EngineError, InvalidRequestError, SmeltError
from services.contracts.tensors import Array
from services.replica.codec import InferCall
from services.replica.engine_seat import EngineSeat
from services.replica.joining import JoinRules
from services.replica.loaded_engine import RunningEngine

# An engine that answered nothing for this long hangs. One that failed so often in a row may
# never recover (a CUDA context stays broken after a fault). Both need a new process.
STALL_S = 60.0
MAX_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Seconds of the steps of one batch: joining, running, splitting."""

    compute_input_s: float
    compute_infer_s: float
    compute_output_s: float


class EngineWorker:
    """Runs batches one at a time on the engine in its seat.

    Attributes:
        seat: the engine in use.
        busy_s: seconds that batches took since the start.
    """

    def __init__(self, seat: EngineSeat, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over an engine that is loaded and warm."""
        self.seat = seat
        self.busy_s = 0.0
        self._clock = clock
        self._busy_since_s: float | None = None
        self._num_failures_in_a_row = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the engine has not returned for longer than any run may take."""
        since_s = self._busy_since_s
        return since_s is not None and self._clock() - since_s > STALL_S

    @property
    def is_suspect(self) -> bool:
        """Whether so many runs failed one after another that the engine must prove itself."""
        return self._num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    async def run(
        self, rules: JoinRules, calls: Sequence[InferCall]
    ) -> tuple[list[dict[str, Array]], BatchTimes]:
        """Join calls, run the engine once and split its outputs.

        Raises:
            InvalidRequestError: the engine refuses the shape.
            EngineError: the engine failed; its words are in the message.
        """
        return await self.seat.thread.call(self._run, self.seat.engine, rules, calls)

    async def prove(self, inputs: Mapping[str, Array]) -> None:
        """Run inputs that are known to be good; when they pass, the requests were at fault.

        Raises:
            EngineError: they fail too.
        """
        try:
            await self.seat.thread.call(self.seat.engine.run, inputs)
        except Exception as error:
            raise EngineError(
                f"engine fails on inputs that are known to be good: {error}"
            ) from error
        self._num_failures_in_a_row = 0

    def replace(self, seat: EngineSeat) -> EngineSeat:
        """Serve with another engine from now on; returns the old one, to be closed.

        Call it between two batches.
        """
        old, self.seat = self.seat, seat
        self._num_failures_in_a_row = 0
        return old

    def _run(
        self, engine: RunningEngine, rules: JoinRules, calls: Sequence[InferCall]
    ) -> tuple[list[dict[str, Array]], BatchTimes]:
        self._busy_since_s = began_s = self._clock()
        try:
            result = self._timed_run(engine, rules, calls)
        except InvalidRequestError:
            raise
        except Exception as error:
            self._num_failures_in_a_row += 1
            if isinstance(error, SmeltError):
                raise
            raise EngineError(f"engine failed: {type(error).__name__}: {error}") from error
        finally:
            self._busy_since_s = None
            self.busy_s += self._clock() - began_s
        self._num_failures_in_a_row = 0
        return result

    def _timed_run(
        self, engine: RunningEngine, rules: JoinRules, calls: Sequence[InferCall]
    ) -> tuple[list[dict[str, Array]], BatchTimes]:
        start_s = self._clock()
        inputs = rules.join(calls)
        joined_s = self._clock()
        outputs = engine.run(inputs)
        ran_s = self._clock()
        parts = rules.split(outputs, calls)
        times = BatchTimes(
            compute_input_s=joined_s - start_s,
            compute_infer_s=ran_s - joined_s,
            compute_output_s=self._clock() - ran_s,
        )
        return parts, times
