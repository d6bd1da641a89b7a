"""Tokenises beside the event loop: what waits in the queue is taken together, as it is due."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from services.contracts.errors import InvalidRequestError
from services.contracts.model.text_input import TEXT
from services.replica.batching.batcher import Batcher
from services.replica.batching.queue import QueuedRequest
from services.replica.engine.executor import EngineThread
from services.replica.request.infer_call import InferCall, held_bytes
from services.replica.request.tokeniser import Tensors, Tokeniser

# Rows that are tokenised at once, as long as there are several requests: the engine waits for them.
_MAX_ROWS = 64


class TextThread:
    """One thread with a tokenizer; a request that it has counts as one that waits."""

    def __init__(
        self,
        tokeniser: Tokeniser,
        check: Callable[[InferCall, Tensors], InferCall],
        batcher: Batcher,
    ) -> None:
        """The thread starts with the first request.

        Args:
            tokeniser: makes tensors of texts.
            check: makes the call of one of texts and what they became, int [B, T] by input, on the
                thread; what it raises is the answer.
            batcher: has texts in its queue.
        """
        self._tokeniser = tokeniser
        self._check = check
        self._batcher = batcher
        self._thread = EngineThread("text")
        self._is_busy = False

    def wake(self) -> None:
        """Have the texts in the queue tokenised."""
        if not self._is_busy:
            self._is_busy = True
            # What comes in this turn of the loop is taken with it.
            asyncio.get_running_loop().call_soon(self._begin)

    async def close(self) -> None:
        """End the thread after what it does now; the batcher was closed before."""
        self._thread.end()

    def _begin(self) -> None:
        taken = self._taken()
        self._is_busy = bool(taken)
        if taken:
            made = self._thread.submit(self._calls, [each.call for each in taken])
            made.add_done_callback(partial(self._go_on, taken))
        self._batcher.texts_changed()

    def _taken(self) -> Sequence[QueuedRequest]:
        """Those that are due first and wanted still, of so many rows."""
        queue = self._batcher.queue
        taken: list[QueuedRequest] = []
        unwanted: list[QueuedRequest] = []
        rows = 0
        for waiting in queue.texts:
            if not queue.is_wanted(waiting):
                unwanted.append(waiting)
                continue
            rows += len(waiting.call.inputs[TEXT])
            if taken and rows > _MAX_ROWS:
                break
            taken.append(waiting)
        for waiting in unwanted:
            queue.remove(waiting)
        return taken

    def _calls(self, calls: Sequence[InferCall]) -> list[InferCall | Exception]:
        """On the thread: checked here as well, so that the loop does less than for tensors."""
        made = self._tokeniser.tensors_from_texts([call.inputs[TEXT] for call in calls])
        return [self._call(call, tensors) for call, tensors in zip(calls, made, strict=True)]

    def _call(self, call: InferCall, made: Tensors | InvalidRequestError) -> InferCall | Exception:
        if isinstance(made, InvalidRequestError):
            return made
        try:
            return self._check(call, made)
        except Exception as error:
            return error

    def _go_on(
        self,
        taken: Sequence[QueuedRequest],
        made: asyncio.Future[list[InferCall | Exception]],
    ) -> None:
        queue = self._batcher.queue
        for waiting, result in zip(taken, made.result(), strict=True):
            if not queue.remove(waiting):
                continue  # its client is gone, or it was late
            if isinstance(result, Exception):
                waiting.fail(result)
                continue
            waiting.call = result
            waiting.num_bytes = held_bytes(result.inputs, 0)
            waiting.is_ready = True
            queue.add(waiting, result.timeout_s)
        self._begin()
