"""Runs batches on the engine in use, and knows how healthy it is."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from services.contracts.errors import EngineError, InvalidRequestError, SmeltError
from services.contracts.tensors import Array
from services.replica.codec import InferCall
from services.replica.engine_seat import EngineSeat
from services.replica.joining import JoinRules
from services.replica.loaded_engine import RunningEngine
from services.replica.standby import SeatedEngine, Standby

logger = logging.getLogger(__name__)

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

    def __init__(
        self,
        seat: EngineSeat,
        standby: Standby | None = None,
        *,
        on_return: Callable[[SeatedEngine, EngineSeat, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over an engine that is loaded and warm.

        Args:
            seat: where that engine is.
            standby: answers when the engine fails, and takes over when it fails for good.
            on_return: called with the engine of the standby that serves again, the seat of the
                bad one, which is to be closed, and its last words.
            clock: monotonic seconds.
        """
        self.seat = seat
        self._standby = standby or Standby()
        self._on_return = on_return
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
            EngineError: the engine failed, and its standby too; its words are in the message.
        """
        try:
            return await self.seat.call(self._run, self.seat.engine, rules, calls)
        except InvalidRequestError:
            raise
        except SmeltError as error:
            answer = await self._rescued(rules, calls)
            if answer is None:
                raise
            logger.warning("the engine before this one answered a batch: %s", error)
            # One failure may be the request's: engines differ in what they let pass. A row of
            # them means that this engine serves nobody.
            if self.is_suspect:
                self._return(str(error))
            return answer

    async def prove(self, inputs: Mapping[str, Array]) -> None:
        """Run inputs that are known to be good; when they pass, the requests were at fault.

        When they fail, but not on the standby, that one serves from now on.

        Raises:
            EngineError: they fail too.
        """
        try:
            await self.seat.call(self.seat.engine.run, inputs)
        except Exception as error:
            words = f"engine fails on inputs that are known to be good: {error}"
            if not await self._standby_runs(inputs) or not self._return(words):
                raise EngineError(words) from error
        self._num_failures_in_a_row = 0

    def replace(self, seat: EngineSeat) -> EngineSeat:
        """Serve with another engine from now on; returns the old one, to be kept or closed.

        Call it between two batches.
        """
        old, self.seat = self.seat, seat
        self._num_failures_in_a_row = 0
        return old

    async def _rescued(
        self, rules: JoinRules, calls: Sequence[InferCall]
    ) -> tuple[list[dict[str, Array]], BatchTimes] | None:
        """The standby's answer to a batch that the engine failed on; None without one."""
        seat = self._standby.seat
        if seat is None:
            return None
        self._busy_since_s = self._clock()
        try:
            answer = await seat.call(self._timed_run, seat.engine, rules, calls)
        except Exception as error:
            logger.info("the engine before this one fails on the batch too: %s", error)
            return None
        finally:
            self._busy_since_s = None
        if self._standby.seat is seat:
            self._standby.mark_used()
        return answer

    async def _standby_runs(self, inputs: Mapping[str, Array]) -> bool:
        seat = self._standby.seat
        if seat is None:
            return False
        try:
            await seat.call(seat.engine.run, inputs)
        except Exception:
            logger.exception("the engine before this one fails too")
            return False
        return True

    def _return(self, words: str) -> bool:
        """Serve with the standby's engine again; False when it is gone."""
        engine = self._standby.take()
        if engine is None:
            return False
        self._on_return(engine, self.replace(engine.seat), words)
        return True

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
