"""Tokenises beside the event loop: what waits is taken together, for one turn of the loop's."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from services.contracts.errors import InvalidRequestError, NotReadyError, OverloadedError
from services.contracts.kserve.tensors import Array
from services.replica.engine.executor import EngineThread
from services.replica.request.infer_call import InferCall
from services.replica.request.tokeniser import Tensors, Tokeniser

# Rows that are tokenised at once, as long as there are several requests: the engine waits for them.
_MAX_ROWS = 64


class _Waiting(NamedTuple):
    """A request of text, and what becomes of it."""

    texts: Array
    answer: asyncio.Future[bytes]
    check: Callable[[Tensors], InferCall]
    submit: Callable[[InferCall, asyncio.Future[bytes]], object]
    on_failure: Callable[[Exception | None], None]


class TextThread:
    """One thread with a tokenizer; requests wait for it in the order in which they came."""

    def __init__(self, tokeniser: Tokeniser, max_waiting: int) -> None:
        """The thread starts with the first request.

        Args:
            tokeniser: makes tensors of texts.
            max_waiting: requests that may wait for it.
        """
        self._tokeniser = tokeniser
        self._max_waiting = max_waiting
        self._thread = EngineThread("text")
        self._waiting: list[_Waiting] = []
        self._is_busy = False

    def answer(
        self,
        texts: Array,
        check: Callable[[Tensors], InferCall],
        submit: Callable[[InferCall, asyncio.Future[bytes]], object],
        on_failure: Callable[[Exception | None], None],
    ) -> asyncio.Future[bytes]:
        """Have what the texts of a request become answered; cancelled, it is left out.

        A future and callbacks, as a task for each request would cost the loop more than all else.

        Args:
            texts: [B] or [B, 1], or pairs, [B, 2].
            check: makes the call of what they became, on the thread.
            submit: has the call answered by that future; what either raises is the answer too.
            on_failure: called with an error that came before that, with None of a cancelled one.

        Raises:
            OverloadedError: as many wait as may.

        The future raises:
            InvalidRequestError: a text has too many tokens, or none.
            NotReadyError: the replica stopped.
            Exception: whatever `check` raises, and `submit` raises or sets.
        """
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                f"{len(self._waiting)} requests wait to be tokenised, as many as may; retry, or "
                "raise max_queue in the recipe"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append(_Waiting(texts, answer, check, submit, on_failure))
        if not self._is_busy:
            self._is_busy = True
            # What comes in this turn of the loop is taken with it.
            loop.call_soon(self._begin)
        return answer

    async def close(self) -> None:
        """End the thread after what it does now; what waits gets NotReadyError."""
        for each in self._waiting:
            _fail(each, NotReadyError("replica stopped before the request ran"))
        self._waiting = []
        self._thread.end()

    def _begin(self) -> None:
        taken = self._taken()
        self._is_busy = bool(taken)
        if taken:
            made = self._thread.submit(self._calls, taken)
            made.add_done_callback(partial(self._go_on, taken))

    def _taken(self) -> Sequence[_Waiting]:
        """The first that are wanted still, of so many rows."""
        for each in self._waiting:
            if each.answer.done():
                each.on_failure(None)
        wanted = [each for each in self._waiting if not each.answer.done()]
        rows = accumulate(len(each.texts) for each in wanted)
        num = max(sum(each <= _MAX_ROWS for each in rows), 1)
        self._waiting = wanted[num:]
        return wanted[:num]

    def _calls(self, taken: Sequence[_Waiting]) -> list[InferCall | Exception]:
        """On the thread: checked here as well, so that the loop does less than for tensors."""
        made = self._tokeniser.tensors_from_texts([each.texts for each in taken])
        return [_call(each, tensors) for each, tensors in zip(taken, made, strict=True)]

    def _go_on(
        self, taken: Sequence[_Waiting], made: asyncio.Future[list[InferCall | Exception]]
    ) -> None:
        for each, result in zip(taken, made.result(), strict=True):
            if each.answer.done() or isinstance(result, Exception):
                _fail(each, result)
                continue
            try:
                each.submit(result, each.answer)
            except Exception as error:
                _fail(each, error)
        self._begin()


def _call(waiting: _Waiting, made: Tensors | InvalidRequestError) -> InferCall | Exception:
    if isinstance(made, InvalidRequestError):
        return made
    try:
        return waiting.check(made)
    except Exception as error:
        return error


def _fail(waiting: _Waiting, error: object) -> None:
    if waiting.answer.done():
        waiting.on_failure(None)
    elif isinstance(error, Exception):
        waiting.on_failure(error)
        waiting.answer.set_exception(error)
