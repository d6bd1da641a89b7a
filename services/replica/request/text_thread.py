"""Tokenises beside the event loop: what waits is taken together, for one turn of the loop's."""

import asyncio
from collections.abc import Callable, Sequence

from services.contracts.errors import InvalidRequestError, NotReadyError, OverloadedError
from services.contracts.kserve.tensors import Array
from services.replica.engine.executor import EngineThread
from services.replica.request.tokeniser import Tensors, Tokeniser

# Rows that are tokenised at once, as long as there are several requests: the engine waits for them.
_MAX_ROWS = 64


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
        self._waiting: list[tuple[Array, asyncio.Future[Tensors]]] = []
        self._task: asyncio.Task[None] | None = None

    def answer(
        self,
        texts: Array,
        submit: Callable[[Tensors], asyncio.Future[bytes]],
        on_failure: Callable[[BaseException], None],
    ) -> asyncio.Future[bytes]:
        """Have what the texts of a request become answered; cancelled, it is left out.

        Args:
            texts: [B] or [B, 1], or pairs, [B, 2].
            submit: takes the tensors, and calls `on_failure` itself for what its future raises.
            on_failure: called before the future gets an error that came before that.

        Raises:
            OverloadedError: as many wait as may.

        The future raises:
            InvalidRequestError: a text has too many tokens, or none.
            NotReadyError: the replica stopped.
            Exception: whatever `submit` or its future raises.
        """
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError(
                f"{len(self._waiting)} requests wait to be tokenised, as many as may; retry, or "
                "raise max_queue in the recipe"
            )
        loop = asyncio.get_running_loop()
        tensors: asyncio.Future[Tensors] = loop.create_future()
        self._waiting.append((texts, tensors))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work(), name="tokenising")
        return loop.create_task(_answered(tensors, submit, on_failure))

    async def close(self) -> None:
        """End the thread once it has tokenised what it took; what waits gets NotReadyError."""
        for _, found in self._waiting:
            if not found.done():
                found.set_exception(NotReadyError("replica stopped before the request ran"))
        self._waiting = []
        if self._task:
            await self._task
        self._thread.end()

    async def _work(self) -> None:
        while taken := self._taken():
            texts = [each for each, _ in taken]
            results = await self._thread.call(self._tokeniser.tensors_from_texts, texts)
            for (_, found), result in zip(taken, results, strict=True):
                _settle(found, result)

    def _taken(self) -> Sequence[tuple[Array, asyncio.Future[Tensors]]]:
        """The first that are wanted still."""
        wanted = [each for each in self._waiting if not each[1].done()]
        rows = 0
        for at, (texts, _) in enumerate(wanted):
            rows += len(texts)
            if at and rows > _MAX_ROWS:
                self._waiting = wanted[at:]
                return wanted[:at]
        self._waiting = []
        return wanted


async def _answered(
    tensors: asyncio.Future[Tensors],
    submit: Callable[[Tensors], asyncio.Future[bytes]],
    on_failure: Callable[[BaseException], None],
) -> bytes:
    try:
        answer = submit(await tensors)
    except BaseException as error:
        on_failure(error)
        raise
    return await answer


def _settle(found: asyncio.Future[Tensors], result: Tensors | InvalidRequestError) -> None:
    if found.done():
        return
    if isinstance(result, InvalidRequestError):
        found.set_exception(result)
    else:
        found.set_result(result)
