"""Requests of text beside the event loop: what bounds others bounds them while they wait."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.replica.batching.queue import Dropped
from services.replica.request.infer_call import InferCall
from services.replica.request.text_thread import TextThread
from tests.unit.services.replica.models import text_model
from tests.unit.services.replica.toy_batcher import Bench, bench, outputs_of, text_call


class Tokeniser:
    """Waits until it may go on; shows what it was given at a time."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.took: list[list[str]] = []

    def tensors_from_texts(self, requests: Sequence[Array]) -> list[Any]:
        """The texts themselves."""
        self.took.append([each[0] for each in requests])
        assert self.may_go.wait(30)
        return [InvalidRequestError("no") if each[0] == "bad" else {"t": each} for each in requests]


def checked(call: InferCall, tensors: dict[str, Array]) -> InferCall:
    if tensors["t"][0] == "large":
        raise InvalidRequestError("too large")
    return text_call()._replace(request_id=call.request_id)


class Texts:
    """A batcher, and a tokenizer that is held."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        self.tokeniser = Tokeniser()
        self.thread = TextThread(self.tokeniser, checked, b.batcher)  # type: ignore[arg-type]
        self.failures: list[Exception | None] = []

    def ask(
        self, text: str = "a", deadline_s: float | None = None, num_bytes: int = 0, **facts: Any
    ) -> asyncio.Future[str]:
        """As a replica does."""
        texts: Array = np.array([text], dtype=np.object_)
        call = InferCall({"text": texts}, {"batch": 1}, (), request_id=text)._replace(**facts)
        answer = self.b.batcher.submit(
            call,
            lambda ready, _: ready.request_id,
            deadline_s,
            num_bytes=num_bytes,
            on_failure=self.failures.append,
            is_ready=False,
        )
        self.thread.wake()
        return answer


@asynccontextmanager
async def held_texts(**batching: Any) -> AsyncIterator[Texts]:
    model = text_model()
    recipe = model.recipe.model_copy(update={"batching": Batching(**batching)})
    async with bench(model.model_copy(update={"recipe": recipe})) as b:
        texts = Texts(b)
        try:
            yield texts
        finally:
            texts.tokeniser.may_go.set()
            await b.batcher.close()
            await texts.thread.close()


async def test_what_waits_is_taken_together_and_the_bad_one_fails_alone() -> None:
    async with held_texts() as texts:
        first = texts.ask()
        await asyncio.sleep(0)
        others = [texts.ask(text) for text in ("b", "bad", "large")]
        texts.tokeniser.may_go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [str(each) for each in found] == ["a", "b", "no", "too large"]
        assert texts.tokeniser.took == [["a"], ["b", "bad", "large"]]
        assert [str(each) for each in texts.failures] == ["no", "too large"]


async def test_one_more_than_may_wait_is_refused_and_the_cancelled_is_left_out() -> None:
    async with held_texts(max_queue=3) as texts:
        answers = [texts.ask()]
        await asyncio.sleep(0)
        answers += [texts.ask(text) for text in ("b", "c")]
        with pytest.raises(OverloadedError, match="3 requests wait in this replica, at most 3"):
            texts.ask("d")
        answers[1].cancel()
        await asyncio.sleep(0)
        texts.tokeniser.may_go.set()
        found = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(each) for each in found] == [str, asyncio.CancelledError, str]
        assert texts.tokeniser.took == [["a"], ["c"]]
        assert texts.failures == [None]


async def test_texts_count_by_their_bytes_until_they_are_tensors() -> None:
    async with held_texts(max_queue_bytes=1000, priority_levels=2, default_priority=2) as texts:
        answers = [texts.ask(num_bytes=250) for _ in range(2)]
        with pytest.raises(OverloadedError, match="of 500 bytes wait .*at most 500 may"):
            texts.ask(num_bytes=1)
        answers.append(texts.ask(num_bytes=499, priority=1))
        texts.b.engine.may_run.clear()
        texts.tokeniser.may_go.set()
        # A held batch of all holds nothing of the queue.
        assert await asyncio.to_thread(texts.b.engine.is_running.wait, 30)
        assert texts.b.batcher.queue.used == 0
        waiting = texts.b.batcher.submit(text_call(), outputs_of, num_bytes=499)
        assert texts.b.batcher.queue.used == 0.998
        texts.b.engine.may_run.set()
        await asyncio.gather(*answers, waiting)


async def test_urgent_texts_are_tokenised_first() -> None:
    async with held_texts(priority_levels=3, default_priority=2) as texts:
        answers = [texts.ask("held")]
        await asyncio.sleep(0)
        answers += [texts.ask(str(level), priority=level) for level in (3, 0, 1)]
        texts.tokeniser.may_go.set()
        await asyncio.gather(*answers)
        assert texts.tokeniser.took == [["held"], ["1", "0", "3"]]


async def test_time_counts_from_the_arrival_and_what_is_late_is_not_tokenised() -> None:
    async with held_texts() as texts:
        first = texts.ask(timeout_s=5.0)
        await asyncio.sleep(0)
        late = [texts.ask("b", timeout_s=5.0), texts.ask("c", deadline_s=105.0)]
        other = texts.ask("d")
        texts.b.clock.now_s += 6
        texts.tokeniser.may_go.set()
        for each in (*late, first):
            with pytest.raises(DeadlineExceededError, match="it waited 6000 ms"):
                await each
        assert await other == "d"
        assert texts.tokeniser.took == [["a"], ["d"]]
        assert texts.b.dropped == [Dropped.EXPIRED] * 3


async def test_draining_waits_for_texts_too() -> None:
    async with held_texts() as texts:
        taken = texts.ask()
        await asyncio.sleep(0)
        waiting = texts.ask("b")
        assert texts.b.batcher.num_unanswered == 2
        drain = asyncio.create_task(texts.b.batcher.drain())
        await asyncio.sleep(0)
        with pytest.raises(NotReadyError, match="draining"):
            texts.ask()
        assert not drain.done()
        texts.tokeniser.may_go.set()
        await drain
        assert (await taken, await waiting) == ("a", "b")


async def test_draining_ends_where_all_texts_are_bad_or_late() -> None:
    async with held_texts() as texts:
        answers = [texts.ask("bad")]
        await asyncio.sleep(0)
        answers.append(texts.ask("late", deadline_s=101.0))
        texts.b.clock.now_s += 2
        texts.tokeniser.may_go.set()
        await texts.b.batcher.drain()
        found = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(each) for each in found] == [InvalidRequestError, DeadlineExceededError]


async def test_closed_it_answers_all_that_wait() -> None:
    async with held_texts() as texts:
        answers = [texts.ask()]
        await asyncio.sleep(0)
        answers.append(texts.ask("b"))
        await texts.b.batcher.close()
        for each in answers:
            with pytest.raises(NotReadyError):
                await each
