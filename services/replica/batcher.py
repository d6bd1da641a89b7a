"""The batcher: a queue in front of one engine, emptied whenever the engine is free.

It is work-conserving: when the engine frees, whatever waits and fits runs at once; only an
idle engine may be told to linger for companions. Joining, running and splitting happen on
the engine's own thread, so the event loop keeps taking requests meanwhile; only engines that
are quicker than a change of threads run on the loop.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from services.contracts.errors import DeadlineExceededError, NotReadyError, OverloadedError
from services.contracts.recipe import Batching
from services.contracts.tensors import Array
from services.replica.closing import ended
from services.replica.codec import InferCall
from services.replica.engine_worker import BatchTimes, EngineWorker
from services.replica.filling import Filling
from services.replica.joining import JoinRules

logger = logging.getLogger(__name__)

Outputs = dict[str, Array]
Clock = Callable[[], float]
_Answer = TypeVar("_Answer")


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call in the queue; times are of the batcher's clock, in seconds.

    Attributes:
        finish: makes the answer of the call's outputs.
        on_failure: called when there is none.
    """

    call: InferCall
    finish: Callable[[Outputs], Any]
    on_failure: Callable[[], None]
    answer: asyncio.Future[Any]
    arrived_s: float
    deadline_s: float | None


class BatchReport(NamedTuple):
    """One run of the engine, for statistics and metrics; give fields by name.

    Attributes:
        rows: rows of each request in the batch.
        queued_s: seconds that each request waited.
        times: seconds of each step; None when the engine failed.
    """

    rows: tuple[int, ...]
    queued_s: tuple[float, ...]
    times: BatchTimes | None


class Batcher:
    """Joins calls into batches and runs them one after another on an engine worker."""

    def __init__(
        self,
        worker: EngineWorker,
        rules: JoinRules,
        batching: Batching,
        *,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Take the worker whose engine runs the batches; `start` begins to serve."""
        self._worker = worker
        self._rules = rules
        self._max_queue = batching.max_queue
        self._max_delay_s = batching.max_delay_ms / 1000
        self._on_batch = on_batch
        self._clock = clock
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        # Held while a batch runs; whoever swaps the engine takes it between two batches.
        self.between_batches = asyncio.Lock()
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Calls in the queue."""
        return len(self._queue)

    @property
    def num_unanswered(self) -> int:
        """Calls in the queue and in the engine."""
        return len(self._queue) + self._num_running

    @property
    def is_alive(self) -> bool:
        """Whether the task that forms batches runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to form batches."""
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="batcher")

    def admit(self) -> None:
        """Refuse when no call can be taken now; cheap, so it goes before decoding.

        Raises:
            OverloadedError: the queue is full.
            NotReadyError: the replica is draining.
        """
        if self._is_draining:
            raise NotReadyError("replica is draining and takes no new requests")
        if len(self._queue) >= self._max_queue:
            # Calls nobody waits for any more must not push out one that somebody does.
            self._queue = deque(waiting for waiting in self._queue if self._is_wanted(waiting))
        if len(self._queue) >= self._max_queue:
            raise OverloadedError(
                f"exceeds maximum queue size: {len(self._queue)} requests wait in this replica, "
                f"at most {self._max_queue} may; retry, or raise max_queue in the recipe"
            )

    def submit(
        self,
        call: InferCall,
        finish: Callable[[Outputs], _Answer],
        deadline_s: float | None = None,
        *,
        on_failure: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[_Answer]:
        """Queue a call; cancelling the future drops it from the queue.

        A future and no coroutine, as a task for each call would cost more than queueing it.

        Args:
            call: what to run.
            finish: makes the answer of the call's outputs; what it raises is the answer too.
            deadline_s: time on the batcher's clock after which nobody wants the answer.
            on_failure: called before the future gets an error; a callback of the future itself
                would cost each request that succeeds another turn of the loop's queue.

        Raises:
            OverloadedError: the queue is full.
            NotReadyError: the replica is draining.

        The future raises:
            DeadlineExceededError: the deadline passed before a batch took the call.
            EngineError: the engine failed on this call's batch.
        """
        self.admit()
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(call, finish, on_failure, answer, self._clock(), deadline_s)
        answer.add_done_callback(partial(self._forget_cancelled, waiting))
        self._queue.append(waiting)
        self._idle.clear()
        self._arrived.set()
        return answer

    def _forget_cancelled(self, waiting: _Waiting, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            with suppress(ValueError):  # a batch may have taken it already
                self._queue.remove(waiting)
            self._note_if_idle()

    async def drain(self) -> None:
        """Refuse new calls and wait until every accepted one is answered."""
        self._is_draining = True
        await self._idle.wait()

    async def close(self) -> None:
        """Stop forming batches; calls that still wait get NotReadyError."""
        self._is_draining = True
        try:
            if self._task:
                await ended(self._task)
        finally:
            for waiting in self._queue:
                _fail(waiting, NotReadyError("replica stopped before the request ran"))
            self._queue.clear()
            self._note_if_idle()

    async def _serve(self) -> None:
        while True:
            if not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
                await self._linger()
            if self._worker.seat.is_brief:
                # Such a batch runs in this turn of the loop: let what has come join it first.
                await asyncio.sleep(0)
            async with self.between_batches:
                batch = self._take_batch()
                if batch:
                    await self._run(batch)
            self._note_if_idle()

    async def _linger(self) -> None:
        """Let an idle engine wait for companions, until a batch is full or time is up."""
        if not self._max_delay_s or self._rules.batch_dim is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._max_delay_s):
                while not self._is_batch_waiting():
                    self._arrived.clear()
                    await self._arrived.wait()

    def _is_batch_waiting(self) -> bool:
        """Whether what waits fills a batch, or more than one."""
        filling = self._new_filling()
        for waiting in self._queue:
            if not filling.sizes:
                filling.begin(waiting.call.sizes)
            elif not filling.add(waiting.call.sizes) and self._rules.merged(
                filling.sizes, waiting.call.sizes
            ):
                return True
        return filling.is_full

    def _take_batch(self) -> list[_Waiting]:
        """Remove from the queue the oldest call and all that fit beside it, in order."""
        batch: list[_Waiting] = []
        passed_over: list[_Waiting] = []
        filling = self._new_filling()
        while self._queue and not (batch and filling.is_full):
            waiting = self._queue.popleft()
            if not self._is_wanted(waiting):
                continue
            if not batch:
                filling.begin(waiting.call.sizes)
            elif not filling.add(waiting.call.sizes):
                passed_over.append(waiting)
                continue
            batch.append(waiting)
        self._queue.extendleft(reversed(passed_over))
        return batch

    def _new_filling(self) -> Filling:
        return Filling(self._rules, self._worker.seat.buckets)

    def _is_wanted(self, waiting: _Waiting) -> bool:
        """Whether a call's answer is still wanted; fails it when its deadline has passed."""
        if waiting.answer.done():
            return False
        if waiting.deadline_s is not None and waiting.deadline_s <= self._clock():
            waited_s = self._clock() - waiting.arrived_s
            error = f"request timeout expired after {waited_s:.3f} s in the queue; it never ran"
            _fail(waiting, DeadlineExceededError(error))
            return False
        return True

    async def _run(self, batch: list[_Waiting]) -> None:
        began_s = self._clock()
        self._num_running = len(batch)
        times: BatchTimes | None = None
        try:
            parts, times = await self._worker.run(self._rules, [w.call for w in batch])
        except asyncio.CancelledError:
            for waiting in batch:
                _fail(waiting, NotReadyError("replica stopped while the request ran"))
            raise
        except Exception as error:
            # Whatever an engine raises is the answer of this batch and of no other.
            for waiting in batch:
                _fail(waiting, error)
        else:
            for waiting, part in zip(batch, parts, strict=True):
                _finish(waiting, part)
        finally:
            self._num_running = 0
        self._report(batch, began_s, times)

    def _report(self, batch: list[_Waiting], began_s: float, times: BatchTimes | None) -> None:
        dim = self._rules.batch_dim or ""
        report = BatchReport(
            rows=tuple([waiting.call.sizes.get(dim, 1) for waiting in batch]),
            queued_s=tuple([began_s - waiting.arrived_s for waiting in batch]),
            times=times,
        )
        try:
            self._on_batch(report)
        except Exception:
            logger.exception("recording a batch failed; serving goes on")

    def _note_if_idle(self) -> None:
        if not self._queue and not self._num_running:
            self._idle.set()


def _finish(waiting: _Waiting, outputs: Outputs) -> None:
    if waiting.answer.done():
        return
    try:
        waiting.answer.set_result(waiting.finish(outputs))
    except Exception as error:
        _fail(waiting, error)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.on_failure()
        waiting.answer.set_exception(error)
