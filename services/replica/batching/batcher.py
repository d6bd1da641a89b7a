"""The batcher: a queue in front of one engine, emptied whenever the engine is free.

It is work-conserving: when the engine frees, whatever waits and fits runs at once; only an
idle engine may be set to linger for companions, and then no longer than until a bucket is
filled, or half of the time that the most pressing of those that wait has left. Joining, running
and splitting happen on the engine's own thread, so the event loop keeps taking requests
meanwhile; only engines quicker than a change of threads run on the loop, and lone calls of others.

`batch_builder` decides which requests run together. A request that is cancelled, or that waited too
long, leaves the queue at once; what the engine has begun it ends, and an answer that is no longer
wanted is thrown away. A batch that fails waits again, and runs in halves, so that a bad request
fails alone in the end; those that are late or outranked by then are treated as any that wait.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from services.contracts.errors import NotReadyError
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.replica.batching.batch_builder import BatchBuilder
from services.replica.batching.batch_report import BatcherTimes, BatchReport
from services.replica.batching.collate import JoinRules
from services.replica.batching.expiry import Expiry
from services.replica.batching.queue import Dropped, QueuedRequest, RequestQueue
from services.replica.closing import ended
from services.replica.engine.worker import BatchTimes, EngineWorker, HangError
from services.replica.request.infer_call import InferCall

logger = logging.getLogger(__name__)

# After so many batches of one call in a row, an idle replica no longer waits for another call.
_ALONE_FOR_LONG = 16

Outputs = dict[str, Array]
Clock = Callable[[], float]
_Answer = TypeVar("_Answer")


class Batcher:
    """Joins calls into batches and runs them one after another on an engine worker.

    Attributes:
        queue: what waits; `texts_changed` is to be called when texts of it are ready, or leave.
    """

    def __init__(
        self,
        worker: EngineWorker,
        rules: JoinRules,
        batching: Batching,
        *,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        on_dropped: Callable[[Dropped], None] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Make a queue and a builder of batches; `start` begins to serve.

        Args:
            worker: runs batches on the engine.
            rules: which inputs may be padded, and which dimension rows are joined along.
            batching: the recipe's bounds of delay, queue and padding, and its priorities.
            on_batch: is called with each batch that has run.
            on_dropped: is called for each call that is refused, expired or cancelled.
            clock: seconds of a monotonic clock, as deadlines of calls have them.
        """
        self._worker = worker
        self._rules = rules
        self._batching = batching
        self._max_delay_s = batching.max_delay_ms / 1000
        self._on_batch = on_batch
        self._on_dropped = on_dropped
        self._clock = clock
        self.queue = RequestQueue(batching, clock, on_dropped=on_dropped)
        self._expiry = Expiry(self._drop_unwanted, clock)
        self._builder = BatchBuilder(self.queue, rules, worker, batching.max_waste)
        self._arrived = asyncio.Event()
        # Held while a batch runs; a swap of the engine takes it between two batches.
        self.between_batches = asyncio.Lock()
        self._num_running = 0
        # Batches in a row of one call each.
        self._num_alone = 0
        self._free_s = clock()
        self.times = BatcherTimes()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Calls in the queue."""
        return len(self.queue)

    @property
    def num_unanswered(self) -> int:
        """Calls in the queue and in the engine."""
        return len(self.queue) + self._num_running

    @property
    def is_running(self) -> bool:
        """Whether the task that forms batches runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to form batches."""
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="batcher")

    def admit(self, priority: int | None = None) -> None:
        """Refuse when no call can be taken now; cheap, so it goes before decoding.

        Args:
            priority: of the call; None while it is not known.

        Raises:
            OverloadedError: the queue is full, at every level where the priority is not known.
            NotReadyError: the replica is draining.
        """
        if self._is_draining:
            raise NotReadyError("replica is draining and accepts no new requests")
        if priority is None:
            self.queue.check_any_room()
        else:
            self.queue.check_room(self._batching.level(priority))

    def submit(
        self,
        call: InferCall,
        finish: Callable[[InferCall, Outputs], _Answer],
        deadline_s: float | None = None,
        *,
        num_bytes: int = 0,
        on_failure: Callable[[Exception | None], None] = lambda _: None,
        is_ready: bool = True,
    ) -> asyncio.Future[_Answer]:
        """Queue a call; cancelling the future drops it from the queue.

        A future and no coroutine, as a task for each call would cost more than queueing it.

        Args:
            call: what to run.
            finish: makes the answer of the call and its outputs; what it raises is the answer too.
            deadline_s: time on the batcher's clock after which the answer is not wanted.
            num_bytes: that it holds while it waits.
            on_failure: called before the future gets an error, with that, and with None when it
                is cancelled; a callback of the future itself would cost each request that
                succeeds another turn of the loop's queue.
            is_ready: a batch may take it; False of texts that are to be tokenised first.

        Raises:
            OverloadedError: the queue is full.
            NotReadyError: the replica is draining.

        The future raises:
            DeadlineExceededError: the deadline passed while the call waited.
            EngineError: the engine failed on this call.
        """
        self.admit(call.priority)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        waiting = QueuedRequest(
            call,
            finish,
            on_failure,
            answer,
            self._clock(),
            self._batching.level(call.priority),
            deadline_s,
            num_bytes,
            is_ready,
        )
        self.queue.add(waiting, call.timeout_s)
        answer.add_done_callback(partial(self._forget_cancelled, waiting))
        if waiting.deadline_s is not None:
            self._expiry.wake_by(waiting.deadline_s)
        self._idle.clear()
        self._arrived.set()
        return answer

    def _forget_cancelled(self, waiting: QueuedRequest, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            waiting.on_failure(None)
            if self.queue.remove(waiting):  # or a batch has taken it already
                self._on_dropped(Dropped.CANCELLED)
            self._note_if_idle()

    def _drop_unwanted(self) -> float | None:
        next_s = self.queue.drop_unwanted()
        self._note_if_idle()
        return next_s

    def texts_changed(self) -> None:
        """Have those that are ready now run."""
        self._arrived.set()
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
            self._expiry.close()
            for waiting in self.queue.all:
                waiting.fail(NotReadyError("replica stopped before the request ran"))
            self.queue.clear()
            self._note_if_idle()

    async def _serve(self) -> None:
        while True:
            was_idle = not self.queue.is_any_ready
            while not self.queue.is_any_ready:
                self._arrived.clear()
                await self._arrived.wait()
            self._free_s = self._clock()
            if was_idle:
                await self._linger()
            is_alone = was_idle and self._num_alone >= _ALONE_FOR_LONG
            if self._worker.executor.loaded.is_brief and not is_alone:
                # Such a batch runs in this turn of the loop: let what has come join it first.
                # Where nothing joins, the turn is a tenth of a request's time.
                await asyncio.sleep(0)
            async with self.between_batches:
                batch = self._builder.take()
                self._num_alone = self._num_alone + 1 if len(batch) == 1 else 0
                self._num_running = num_calls = len(batch)
                try:
                    if batch:
                        await self._run(batch)
                finally:
                    self._num_running = 0
                ran_s = self._clock() - self._free_s
                self.times = self.times.after(ran_s, num_calls, is_pressed=not was_idle)
                # What waits for the next one shall not hold what these were read from.
                del batch
            self._note_if_idle()

    async def _linger(self) -> None:
        """Let an idle engine wait for companions, until a bucket is full or time is up."""
        if not self._max_delay_s or self._rules.batch_dim is None:
            return
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._max_delay_s
        with suppress(TimeoutError):
            while self.queue and not self._builder.is_batch_waiting():
                self._arrived.clear()
                # Waiting for companions must not be what makes a request expire.
                pressing_s = min(ends_s, loop.time() + self._least_time_left_s() / 2)
                async with asyncio.timeout_at(pressing_s):
                    await self._arrived.wait()

    def _least_time_left_s(self) -> float:
        deadlines = (w.deadline_s for w in self.queue if w.deadline_s is not None)
        return max(min(deadlines, default=math.inf) - self._clock(), 0.0)

    async def _run(self, batch: list[QueuedRequest]) -> None:
        began_s = self._clock()
        times: BatchTimes | None = None
        reply_s = 0.0
        try:
            is_alone = len(batch) == 1 and not self.queue
            calls = [w.call for w in batch]
            parts, times = await self._worker.run(self._rules, calls, is_alone=is_alone)
        except asyncio.CancelledError:
            self._fail_all(batch, NotReadyError("replica stopped while the request ran"))
            raise
        except Exception as error:
            # It may be the fault of one call, or of all together, as memory is. What hangs is not
            # asked again.
            if len(batch) > 1 and not isinstance(error, HangError):
                logger.info("batch of %d failed; running each request alone: %s", len(batch), error)
                self._put_back(batch)
                batch.clear()  # each is reported when it runs apart, and counted once
            else:
                self._fail_all(batch, error)
        else:
            ran_s = self._clock()
            for waiting, part in zip(batch, parts, strict=True):
                self._finish(waiting, part)
            reply_s = self._clock() - ran_s
        if batch:
            self._report(batch, began_s, times, reply_s)
        # The error's traceback holds this frame: a cycle would keep what requests lie in.
        batch.clear()

    def _put_back(self, batch: Sequence[QueuedRequest]) -> None:
        """Let a batch that failed wait again, in halves, or in calls where the engine is broken."""
        wanted = [waiting for waiting in batch if not waiting.answer.done()]
        for _ in range(len(batch) - len(wanted)):
            self._on_dropped(Dropped.DISCARDED)
        most = 1 if self._worker.is_suspect else (len(batch) + 1) // 2
        self.queue.put_back(wanted, most)
        for waiting in wanted:
            if waiting.deadline_s is not None:
                self._expiry.wake_by(waiting.deadline_s)

    def _fail_all(self, batch: Sequence[QueuedRequest], error: Exception) -> None:
        for waiting in batch:
            if waiting.answer.done():
                self._on_dropped(Dropped.DISCARDED)
            waiting.fail(error)

    def _finish(self, waiting: QueuedRequest, outputs: Outputs) -> None:
        if waiting.answer.done():
            self._on_dropped(Dropped.DISCARDED)
            return
        try:
            waiting.answer.set_result(waiting.finish(waiting.call, outputs))
        except Exception as error:
            waiting.fail(error)
            # As below.
            del waiting

    def _report(
        self,
        batch: Sequence[QueuedRequest],
        began_s: float,
        times: BatchTimes | None,
        reply_s: float,
    ) -> None:
        dim = self._rules.rows_dim or ""
        if times:
            self._builder.learn(times)
        report = BatchReport(
            rows=tuple([waiting.call.sizes.get(dim, 1) for waiting in batch]),
            queued_s=tuple([began_s - waiting.arrived_s for waiting in batch]),
            times=times,
            forming_s=max(began_s - self._free_s, 0.0),
            reply_s=reply_s,
            calls=tuple([waiting.call for waiting in batch]),
        )
        try:
            self._on_batch(report)
        except Exception:
            logger.exception("a batch could not be recorded; serving continues")

    def _note_if_idle(self) -> None:
        if not self.queue and not self._num_running:
            self._idle.set()
