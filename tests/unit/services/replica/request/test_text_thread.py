"""Requests of text beside the event loop: taken together, cancelled, refused, closed."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError, NotReadyError, OverloadedError
from services.contracts.kserve.tensors import Array
from services.replica.request.infer_call import InferCall
from services.replica.request.text_thread import TextThread

TEXTS: Array = np.array(["a"], dtype=np.object_)


class Tokeniser:
    """Waits until it may go on; shows what it was given at a time."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.sizes: list[int] = []

    def tensors_from_texts(self, requests: list[Array]) -> list[Any]:
        self.sizes.append(len(requests))
        self.may_go.wait(10)
        return [InvalidRequestError("no") if each[0] == "bad" else {"t": each} for each in requests]


def checked(tensors: dict[str, Array]) -> InferCall:
    if tensors["t"][0] == "large":
        raise InvalidRequestError("too large")
    return InferCall(inputs=tensors, sizes={}, outputs=())


def submit(_: object, answer: asyncio.Future[bytes]) -> None:
    answer.set_result(b"answer")


def ask(thread: TextThread, failures: list[Exception | None], text: str = "a") -> Any:
    texts: Array = np.array([text], dtype=np.object_)
    return thread.answer(texts, checked, submit, failures.append)


async def test_what_waits_is_taken_together_and_the_bad_one_fails_alone() -> None:
    tokeniser = Tokeniser()
    thread = TextThread(tokeniser, 10)  # type: ignore[arg-type]
    failures: list[Exception | None] = []
    first = ask(thread, failures)
    await asyncio.sleep(0)
    others = [ask(thread, failures, text) for text in ("a", "bad", "large")]
    tokeniser.may_go.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    assert [each if isinstance(each, bytes) else str(each) for each in found] == [
        b"answer",
        b"answer",
        "no",
        "too large",
    ]
    assert tokeniser.sizes == [1, 3]
    assert [str(each) for each in failures] == ["no", "too large"]
    await thread.close()


async def test_one_more_than_may_wait_is_refused_and_the_cancelled_is_left_out() -> None:
    tokeniser = Tokeniser()
    thread = TextThread(tokeniser, 2)  # type: ignore[arg-type]
    failures: list[Exception | None] = []
    answers = [ask(thread, failures)]
    await asyncio.sleep(0)
    answers += [ask(thread, failures) for _ in range(2)]
    with pytest.raises(OverloadedError, match="2 requests wait to be tokenised"):
        ask(thread, failures)
    await asyncio.sleep(0)
    answers[1].cancel()
    await asyncio.sleep(0)
    tokeniser.may_go.set()
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(each) for each in found] == [bytes, asyncio.CancelledError, bytes]
    assert tokeniser.sizes == [1, 1]
    assert failures == [None]
    await thread.close()


async def test_closed_it_answers_what_it_took_and_no_more() -> None:
    tokeniser = Tokeniser()
    thread = TextThread(tokeniser, 10)  # type: ignore[arg-type]
    taken = ask(thread, [])
    await asyncio.sleep(0)
    waiting = ask(thread, [])
    await thread.close()
    tokeniser.may_go.set()
    assert await taken == b"answer"
    with pytest.raises(NotReadyError):
        await waiting
