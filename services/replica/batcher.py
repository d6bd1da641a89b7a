"""The batcher: a queue in front of one engine, emptied whenever the engine is free.

It is work-conserving: when the engine frees, whatever waits and fits runs at once; only an
idle engine may be told to linger for companions, and then no longer than until a bucket is
filled, or half of the time that the most pressing of those that wait has left. Joining, running
and splitting happen on the engine's own thread, so the event loop keeps taking requests
meanwhile; only engines that are quicker than a change of threads run on the loop.

Requests whose lengths may be padded are grouped by `grouping`; all others run with the first
that fit beside them. A request that is cancelled, or that waited too long, leaves the queue
at once; what the engine has begun it ends, and an answer that nobody wants is thrown away.
A batch that fails is run again call by call, so that a bad request fails by itself.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from services.contracts.batching import Batching
from services.contracts.byte_strings import BYTES
from services.contracts.errors import NotReadyError
from services.contracts.tensors import Array
from services.replica.closing import ended
from services.replica.codec import InferCall
from services.replica.engine_worker import BatchTimes, EngineWorker, HangError
from services.replica.expiry import Expiry
from services.replica.forming import BatchFormer
from services.replica.joining import JoinRules
from services.replica.waiting import Dropped, Waiting, WaitingLine

logger = logging.getLogger(__name__)

# After so many batches of one call in a row, an idle replica no longer expects company.
_ALONE_FOR_LONG = 16
# A word of some letters is an object of some 60 bytes and its place in an array of 8.
_STRING_BYTES_FACTOR = 8

Outputs = dict[str, Array]
Clock = Callable[[], float]
_Answer = TypeVar("_Answer")


class BatchReport(NamedTuple):
    """One run of the engine, for statistics and metrics; give fields by name.

    Attributes:
        rows: rows of each request in the batch.
        queued_s: seconds that each request waited.
        times: seconds of each step; None when the engine failed.
        forming_s: seconds from when the engine was free and a request waited to the run.
        reply_s: seconds in which the answers were written.
        sizes: dynamic dimensions of each request.
    """

    rows: tuple[int, ...]
    queued_s: tuple[float, ...]
    times: BatchTimes | None
    forming_s: float = 0.0
    reply_s: float = 0.0
    sizes: tuple[Mapping[str, int], ...] = ()


class Batcher:
    """Joins calls into batches and runs them one after another on an engine worker."""

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
        """Take the worker whose engine runs the batches; `start` begins to serve."""
        self._worker = worker
        self._rules = rules
        self._batching = batching
        self._max_delay_s = batching.max_delay_ms / 1000
        has_strings = any(spec.datatype == BYTES for spec in rules.inputs.values())
        self._byte_factor = _STRING_BYTES_FACTOR if has_strings else 1
        self._on_batch, self._on_dropped = on_batch, on_dropped
        self._clock = clock
        self._line = WaitingLine(batching, clock, on_dropped=on_dropped)
        self._expiry = Expiry(self._drop_unwanted, clock)
        self._former = BatchFormer(self._line, rules, worker, batching.max_waste)
        self._arrived = asyncio.Event()
        # Held while a batch runs; whoever swaps the engine takes it between two batches.
        self.between_batches = asyncio.Lock()
        self._num_running = 0
        # Batches in a row of one call each.
        self._num_alone = 0
        self._free_s = clock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Calls in the queue."""
        return len(self._line)

    @property
    def num_unanswered(self) -> int:
        """Calls in the queue and in the engine."""
        return len(self._line) + self._num_running

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
        self._line.check_room()

    def submit(
        self,
        call: InferCall,
        finish: Callable[[Outputs], _Answer],
        deadline_s: float | None = None,
        *,
        num_bytes: int = 0,
        on_failure: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[_Answer]:
        """Queue a call; cancelling the future drops it from the queue.

        A future and no coroutine, as a task for each call would cost more than queueing it.

        Args:
            call: what to run.
            finish: makes the answer of the call's outputs; what it raises is the answer too.
            deadline_s: time on the batcher's clock after which nobody wants the answer.
            num_bytes: of the message that it came in.
            on_failure: called before the future gets an error, and when it is cancelled; a
                callback of the future itself would cost each request that succeeds another turn
                of the loop's queue.

        Raises:
            OverloadedError: the queue is full.
            NotReadyError: the replica is draining.

        The future raises:
            DeadlineExceededError: the deadline passed before a batch took the call.
            EngineError: the engine failed on this call.
        """
        self.admit()
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        waiting = Waiting(
            call, finish, on_failure, answer, self._clock(),
            self._batching.level(call.priority), deadline_s, num_bytes * self._byte_factor,
        )  # fmt: skip
        self._line.add(waiting, call.timeout_s)
        answer.add_done_callback(partial(self._forget_cancelled, waiting))
        if waiting.deadline_s is not None:
            self._expiry.wake_by(waiting.deadline_s)
        self._idle.clear()
        self._arrived.set()
        return answer

    def _forget_cancelled(self, waiting: Waiting, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            waiting.on_failure()
            if self._line.remove(waiting):  # or a batch has taken it already
                self._on_dropped(Dropped.CANCELLED)
            self._note_if_idle()

    def _drop_unwanted(self) -> float | None:
        next_s = self._line.drop_unwanted()
        self._note_if_idle()
        return next_s

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
            for waiting in self._line:
                waiting.fail(NotReadyError("replica stopped before the request ran"))
            self._line.clear()
            self._note_if_idle()

    async def _serve(self) -> None:
        while True:
            was_idle = not self._line
            if was_idle:
                self._arrived.clear()
                await self._arrived.wait()
            self._free_s = self._clock()
            if was_idle:
                await self._linger()
            is_alone = was_idle and self._num_alone >= _ALONE_FOR_LONG
            if self._worker.seat.is_brief and not is_alone:
                # Such a batch runs in this turn of the loop: let what has come join it first.
                # Where nothing joins, the turn is a tenth of a request's time.
                await asyncio.sleep(0)
            async with self.between_batches:
                batch = self._former.take()
                self._num_alone = self._num_alone + 1 if len(batch) == 1 else 0
                self._num_running = len(batch)
                try:
                    if batch:
                        await self._run(batch)
                finally:
                    self._num_running = 0
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
            while self._line and not self._former.is_batch_waiting():
                self._arrived.clear()
                # Waiting for companions must not be what makes a request expire.
                pressing_s = min(ends_s, loop.time() + self._least_time_left_s() / 2)
                async with asyncio.timeout_at(pressing_s):
                    await self._arrived.wait()

    def _least_time_left_s(self) -> float:
        deadlines = [w.deadline_s for w in self._line if w.deadline_s is not None]
        return max(min(deadlines, default=math.inf) - self._clock(), 0.0)

    async def _run(self, batch: list[Waiting]) -> None:
        began_s = self._clock()
        times: BatchTimes | None = None
        reply_s = 0.0
        runs_again = False
        try:
            parts, times = await self._worker.run(self._rules, [w.call for w in batch])
        except asyncio.CancelledError:
            _fail_all(batch, NotReadyError("replica stopped while the request ran"))
            raise
        except Exception as error:
            # It may be the fault of one call, or of all together, as memory is. What hangs is not
            # asked again.
            runs_again = len(batch) > 1 and not isinstance(error, HangError)
            if runs_again:
                logger.info("%d requests failed together, each runs alone: %s", len(batch), error)
            else:
                _fail_all(batch, error)
        else:
            ran_s = self._clock()
            for waiting, part in zip(batch, parts, strict=True):
                self._finish(waiting, part)
            reply_s = self._clock() - ran_s
        if runs_again:
            await self._run_each(batch)  # which reports each, so that no call is counted twice
        else:
            self._report(batch, began_s, times, reply_s)
        # The error's traceback holds this frame: a cycle would keep what requests lie in.
        batch.clear()

    async def _run_each(self, batch: Sequence[Waiting]) -> None:
        """Run each call of a batch that failed alone, unless nobody wants it any more."""
        try:
            for waiting in batch:
                if waiting.answer.done():
                    self._on_dropped(Dropped.DISCARDED)
                elif self._line.is_wanted(waiting):
                    self._free_s = self._clock()
                    await self._run([waiting])
        except asyncio.CancelledError:
            _fail_all(batch, NotReadyError("replica stopped before the request ran again"))
            raise

    def _finish(self, waiting: Waiting, outputs: Outputs) -> None:
        if waiting.answer.done():
            self._on_dropped(Dropped.DISCARDED)
            return
        try:
            waiting.answer.set_result(waiting.finish(outputs))
        except Exception as error:
            waiting.fail(error)
            # As below.
            del waiting

    def _report(
        self, batch: Sequence[Waiting], began_s: float, times: BatchTimes | None, reply_s: float
    ) -> None:
        dim = self._rules.rows_dim or ""
        if times:
            self._former.learn(times)
        report = BatchReport(
            rows=tuple([waiting.call.sizes.get(dim, 1) for waiting in batch]),
            queued_s=tuple([began_s - waiting.arrived_s for waiting in batch]),
            times=times,
            forming_s=max(began_s - self._free_s, 0.0),
            reply_s=reply_s,
            sizes=tuple([waiting.call.sizes for waiting in batch]),
        )
        try:
            self._on_batch(report)
        except Exception:
            logger.exception("recording a batch failed; serving goes on")

    def _note_if_idle(self) -> None:
        if not self._line and not self._num_running:
            self._idle.set()


def _fail_all(batch: Sequence[Waiting], error: Exception) -> None:
    for waiting in batch:
        waiting.fail(error)
