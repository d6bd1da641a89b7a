"""Runs batches on the engine in use, and knows how healthy it is."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.contracts.errors import EngineError, InvalidRequestError, SmeltError
from services.contracts.kserve.tensors import Array
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import RunShapes
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.standby import Standby
from services.replica.request.infer_call import InferCall

logger = logging.getLogger(__name__)

# An engine that failed so often in a row may never recover: a CUDA context stays broken after
# a fault. The requests may be at fault as well, so it is asked before it is left; see `prove`.
MAX_FAILURES_IN_A_ROW = 5
# A process that was stopped for a while finds its clock ahead, and its engine about to answer.
_SECOND_LOOK_S = 1.0

_Batch = tuple[list[dict[str, Array]], "BatchTimes"]


class BatchTimes(NamedTuple):
    """Seconds of the steps of one batch: joining, running, splitting; give fields by name.

    Attributes:
        num_elements: what the engine computed, padding included; see `run_shapes`.
    """

    compute_input_s: float
    compute_infer_s: float
    compute_output_s: float
    num_elements: int = 0


@dataclass(eq=False, slots=True)
class _Run:
    """A batch on an engine that has not returned.

    Attributes:
        answer: what is waited for; None on the event loop's own thread.
        is_on_loop: it runs on the event loop's own thread.
        is_given_up: it hangs, and another engine is to answer.
    """

    executor: EngineExecutor
    since_s: float
    is_on_loop: bool
    answer: asyncio.Future[_Batch] | None = None
    is_given_up: bool = False


class HangError(EngineError):
    """A run was abandoned."""


class EngineWorker:
    """Runs batches one at a time on the engine in its executor.

    Attributes:
        executor: the engine in use.
    """

    def __init__(
        self,
        executor: EngineExecutor,
        standby: Standby | None = None,
        *,
        on_return: Callable[[EngineExecutor, EngineExecutor, str], None] = lambda *_: None,
        second_look_s: float = _SECOND_LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over an engine that is loaded and warm.

        Args:
            executor: where that engine is.
            standby: answers when the engine fails, and takes over when it hangs or is proven bad.
            on_return: called with the standby's engine, which serves again, the bad one, which is
                to be closed, and why it was left.
            second_look_s: how long a run that stalls may still take before it is abandoned.
            clock: monotonic seconds.
        """
        self.executor = executor
        self._standby = standby or Standby()
        self._on_return = on_return
        self._second_look_s = second_look_s
        self._clock = clock
        self._current: _Run | None = None
        self._known_shapes: tuple[EngineExecutor, JoinRules, RunShapes] | None = None
        self._num_failures_in_a_row = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the engine has not returned for longer than any run may take."""
        run = self._current
        return run is not None and self._clock() - run.since_s > run.executor.loaded.stall_s

    @property
    def is_loop_held(self) -> bool:
        """Whether the one that stalls runs on the event loop; to be asked from other threads."""
        run = self._current
        return run is not None and run.is_on_loop and self.is_stalled

    @property
    def is_suspect(self) -> bool:
        """Whether so many runs failed one after another that the engine must prove itself."""
        return self._num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    async def run(
        self, rules: JoinRules, calls: Sequence[InferCall], *, is_alone: bool = False
    ) -> _Batch:
        """Join calls, run the engine once and split its outputs.

        Args:
            rules: of the model.
            calls: to be joined.
            is_alone: there is one, and nothing waits behind it.

        Raises:
            InvalidRequestError: the engine refuses the shape.
            EngineError: the engine failed, and its standby too; its words are in the message.
            HangError: likewise, as it does not return.
        """
        executor = self.executor
        try:
            # No engine runs twice at once: its thread may be at a sample of a proof. None is brief
            # beside one that is being loaded.
            is_free = executor.thread.is_idle and not self._standby.is_loading
            is_brief_now = is_alone and executor.loaded.is_brief_alone and is_free
            is_on_loop = executor.loaded.is_brief or is_brief_now
            return await self._on(executor, self._counted_run, rules, calls, is_on_loop=is_on_loop)
        except InvalidRequestError:
            raise
        except HangError as error:
            if self.executor is executor and not self._return(str(error)):
                raise
            return await self.run(rules, calls)
        except SmeltError as error:
            if self.executor is not executor:
                # A proof found this out meanwhile, and the standby is what serves now.
                return await self.run(rules, calls)
            answer = await self._answered_by_standby(rules, calls)
            if answer is None:
                raise
            # Nothing follows from it here: engines differ in what requests they let pass. A row
            # of them has the health check ask for a proof, and that decides.
            logger.warning("the previous engine answered a batch: %s", error)
            return answer

    async def check_hang(self) -> None:
        """Raise EngineError when the engine hangs and none can take over from it."""
        if self.is_stalled and not await self.leave_hung():
            limit_s = self.executor.loaded.stall_s
            raise EngineError(f"engine has not returned for {limit_s:.0f} s; restart the replica")

    async def leave_hung(self) -> bool:
        """Abandon the run that stalls, so that the standby answers it and serves from now on.

        Returns False when there is none, or when it is the one that stalls.
        """
        run = self._current
        if run is not None and run.answer is not None:
            await asyncio.wait([run.answer], timeout=self._second_look_s)
        if run is None or self._current is not run:
            return True
        # On a device that hangs the standby will too; then that is the next thing found. A proof
        # may have put it in the place of the one that hangs already.
        spare = self._standby.executor
        is_next_there = spare is not None or run.executor is not self.executor
        if run.answer is None or run.executor is spare or not is_next_there:
            return False
        run.is_given_up = True
        run.answer.cancel()
        return True

    async def prove(self, samples: Iterable[Mapping[str, Array]]) -> None:
        """Run inputs that are known to be good; when all pass, the requests were at fault.

        When some fail, but not on the standby, that one serves from now on. Batches and swaps
        go on meanwhile: what is found out counts only while its engine is in use.

        Args:
            samples: of any shape; each is run alone, so that batches come between; drawn as needed.

        Raises:
            EngineError: some fail there too.
        """
        executor = self.executor
        for inputs in samples:
            fault = await self._fault(executor, inputs)
            if fault and self.executor is executor:
                await self._leave_failing(executor, inputs, fault)
            if self.executor is not executor:
                return
        self._num_failures_in_a_row = 0

    def replace(self, executor: EngineExecutor) -> EngineExecutor:
        """Serve with another engine from now on; returns the old one, to be kept or closed.

        Call it between two batches.
        """
        old = self.executor
        self.executor = executor
        self._num_failures_in_a_row = 0
        return old

    async def _on(
        self,
        executor: EngineExecutor,
        function: Callable[[EngineExecutor, JoinRules, Sequence[InferCall]], _Batch],
        rules: JoinRules,
        calls: Sequence[InferCall],
        *,
        is_on_loop: bool,
    ) -> _Batch:
        """Run a batch where an engine runs, in view of `is_stalled` and `leave_hung`."""
        # From here and not from its start: what runs before it on that thread may hang too.
        self._current = run = _Run(executor, self._clock(), is_on_loop)
        try:
            if is_on_loop:
                return function(executor, rules, calls)
            run.answer = executor.thread.submit(function, executor, rules, calls)
            return await run.answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not run.is_given_up or (task and task.cancelling()):
                raise
            raise HangError(
                f"engine has not returned for {executor.loaded.stall_s:.0f} s"
            ) from None
        finally:
            self._current = run.answer = None

    async def _answered_by_standby(
        self, rules: JoinRules, calls: Sequence[InferCall]
    ) -> _Batch | None:
        """The standby's answer to a batch that the engine failed on; None without one."""
        executor = self._standby.executor
        if executor is None:
            return None
        try:
            answer = await self._on(
                executor, self._timed_run, rules, calls, is_on_loop=executor.loaded.is_brief
            )
        except Exception as error:
            logger.info("the previous engine fails on the batch too: %s", error)
            return None
        if self._standby.executor is executor:
            self._standby.mark_used()
        return answer

    async def _leave_failing(
        self, executor: EngineExecutor, inputs: Mapping[str, Array], fault: str
    ) -> None:
        """Serve with the standby from now on if it runs what the engine in use fails on."""
        spare = self._standby.executor
        can_spare_run = spare is not None and not await self._fault(spare, inputs)
        if self.executor is not executor:
            return
        words = f"engine fails on inputs that are known to be good: {fault}"
        if not can_spare_run or self._standby.executor is not spare or not self._return(words):
            raise EngineError(words)

    async def _fault(self, executor: EngineExecutor, inputs: Mapping[str, Array]) -> str:
        """The error of an engine for inputs that are known to be good; "" when it runs them."""
        try:
            async with asyncio.timeout(executor.loaded.stall_s):
                await self._sample_run(executor, inputs)
        except TimeoutError:
            return f"no answer within {executor.loaded.stall_s:.0f} s"
        except Exception as error:
            logger.exception("an engine fails on inputs that are known to be good")
            return str(error) or type(error).__name__
        return ""

    async def _sample_run(self, executor: EngineExecutor, inputs: Mapping[str, Array]) -> None:
        """Run inputs of no request where an engine runs, in view of `is_loop_held`."""
        before = self._current
        if executor.loaded.is_brief:  # it holds the loop, so no batch can begin or end meanwhile
            self._current = _Run(executor, self._clock(), is_on_loop=True)
        try:
            await executor.call(executor.loaded.engine.run, inputs)
        finally:
            if executor.loaded.is_brief:
                self._current = before

    def _return(self, words: str) -> bool:
        """Serve with the standby's engine again; False when it is gone."""
        spare = self._standby.take()
        if spare is None:
            return False
        self._on_return(spare, self.replace(spare), words)
        return True

    def _counted_run(
        self, executor: EngineExecutor, rules: JoinRules, calls: Sequence[InferCall]
    ) -> _Batch:
        try:
            result = self._timed_run(executor, rules, calls)
        except InvalidRequestError:
            raise
        except Exception as error:
            self._count_run(executor, has_failed=True)
            if isinstance(error, SmeltError):
                raise
            raise EngineError(f"engine failed: {type(error).__name__}: {error}") from error
        self._count_run(executor, has_failed=False)
        return result

    def _count_run(self, executor: EngineExecutor, *, has_failed: bool) -> None:
        # A replaced engine's outcome is none of the one in use.
        if executor is self.executor:
            self._num_failures_in_a_row = self._num_failures_in_a_row + 1 if has_failed else 0

    def _timed_run(
        self, executor: EngineExecutor, rules: JoinRules, calls: Sequence[InferCall]
    ) -> _Batch:
        start_s = self._clock()
        shapes = self._shapes_of(executor, rules)
        sizes = shapes.joined(rules.sizes_of(calls))
        inputs = rules.join(calls, sizes)
        joined_s = self._clock()
        outputs = executor.loaded.engine.run(inputs)
        ran_s = self._clock()
        parts = rules.split(outputs, calls, sizes)
        times = BatchTimes(
            compute_input_s=joined_s - start_s,
            compute_infer_s=ran_s - joined_s,
            compute_output_s=self._clock() - ran_s,
            num_elements=shapes.num_elements(sizes),
        )
        return parts, times

    def _shapes_of(self, executor: EngineExecutor, rules: JoinRules) -> RunShapes:
        """What the engine takes; kept, as making it anew took a twelfth of a small batch's time."""
        known = self._known_shapes
        if known is None or known[0] is not executor or known[1] is not rules:
            engine = executor.loaded
            shapes = RunShapes(rules, engine.buckets, pads_to_largest=engine.pads_to_largest)
            known = self._known_shapes = executor, rules, shapes
        return known[2]
