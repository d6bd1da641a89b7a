"""Requests of streams: when they are taken, and how long they keep memory and its room."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frames import Payload
from services.gateway.api.status_codes import StatusTable
from services.gateway.api.streaming import MAX_AHEAD, Answer, InferenceStreams
from services.pb import open_inference_v2_pb2 as pb


@pytest.fixture(autouse=True)
def only_own_garbage() -> Iterator[None]:
    """Collections look at what the test made, and not at all that this process has imported."""
    gc.freeze()
    yield
    gc.unfreeze()


class Client:
    """Sends requests; also the context of the stream.

    Attributes:
        num_taken: of its requests.
        returned: numbers of those whose room was given back.
        num_held, most_held: bytes of answers that the stream holds, and may hold.
    """

    def __init__(self, num_requests: int) -> None:
        self.num_taken = self.num_held = 0
        self.most_held = 1 << 30
        self.returned: list[int] = []
        self._num_requests = num_requests
        self._bodies: list[Any] = []

    def answers(self, answer: Answer, *, has_parts: bool = False) -> Any:
        """What is said to it."""
        context: Any = self
        streams = InferenceStreams(answer, StatusTable(), lambda _: has_parts)
        return streams.serve(self._requests(), None, context)

    async def _requests(self) -> AsyncIterator[Payload]:
        while self.num_taken < self._num_requests:
            self.num_taken += 1
            yield self._body()

    def _body(self) -> memoryview:
        body = np.zeros(10, np.uint8)
        self._bodies.append(weakref.ref(body))
        return body.data

    def hold(self) -> Callable[[], None]:
        """See `Context.hold`."""
        number = self.num_taken
        return lambda: self.returned.append(number)

    def hold_answer(self, num_bytes: int) -> bool:
        """See `counter_of_answers`."""
        is_admitted = self.num_held + num_bytes <= self.most_held
        self.num_held += num_bytes * is_admitted
        return is_admitted

    def invocation_metadata(self) -> tuple[()]:
        """None."""
        return ()

    def in_memory(self) -> list[int]:
        """Numbers of the requests that anybody has."""
        gc.collect()
        return [number for number, each in enumerate(self._bodies, 1) if each() is not None]


async def ran() -> None:
    """Return once whatever can run has run."""
    for _ in range(10 * MAX_AHEAD):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_told_an_error", [False, True])
async def test_a_request_is_kept_until_its_answer_is_made_though_nobody_takes_that(
    is_told_an_error: bool,
) -> None:
    gates, asked = [asyncio.Event() for _ in range(3)], iter(range(3))

    async def answer(body: Payload, deadline_s: float | None) -> Payload:
        await gates[next(asked)].wait()
        if is_told_an_error:
            raise InvalidRequestError("not so")
        return b"answer"

    client = Client(3)
    answers = client.answers(answer)
    first = asyncio.ensure_future(anext(answers))
    await ran()
    assert (client.returned, client.in_memory()) == ([], [1, 2, 3])
    gates[1].set()
    await ran()
    assert (client.returned, client.in_memory()) == ([2], [1, 3])
    for gate in gates:
        gate.set()
    await first
    await ran()
    assert (sorted(client.returned), client.in_memory()) == ([1, 2, 3], [])
    assert len([each async for each in answers]) == 2


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_stream_that_ends_gives_the_room_of_all_its_requests_back(
    is_begun: bool,
) -> None:
    begun = []

    async def answer(body: Payload, deadline_s: float | None) -> Payload:
        begun.append(len(body))
        await asyncio.Event().wait()
        return b""

    client = Client(3)
    first = asyncio.ensure_future(anext(client.answers(answer)))
    while client.num_taken < 3:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    if is_begun:
        await ran()
    assert (client.num_taken, len(begun)) == (3, 3 if is_begun else 0)
    first.cancel()
    await ran()
    # It keeps its error, whose traceback holds all of the stream.
    del first
    assert (sorted(client.returned), client.in_memory()) == ([1, 2, 3], [])


async def test_no_request_is_taken_before_there_is_a_place_for_it() -> None:
    """Whoever does not read answers is known by requests that nobody took."""

    async def answer(body: Payload, deadline_s: float | None) -> Payload:
        return b"answer"

    client = Client(2 * MAX_AHEAD)
    answers = client.answers(answer)
    await anext(answers)
    await ran()
    assert client.num_taken == MAX_AHEAD
    await anext(answers)
    await ran()
    assert client.num_taken == MAX_AHEAD + 1
    assert len([each async for each in answers]) == 2 * MAX_AHEAD - 2


@pytest.mark.parametrize("is_read", [True, False])
async def test_answers_count_until_they_are_sent_or_the_stream_ends(is_read: bool) -> None:
    async def answer(body: Payload, deadline_s: float | None) -> Payload:
        return bytes(1000)

    client = Client(4)
    answers = client.answers(answer)
    await anext(answers)
    await ran()
    assert client.num_held == 3000
    if is_read:
        await anext(answers)
        assert client.num_held == 2000
        assert len([each async for each in answers]) == 2
    await answers.aclose()
    assert client.num_held == 0


@pytest.mark.parametrize("is_read", [True, False])
async def test_parts_of_answers_count_too(is_read: bool) -> None:
    async def answer(request: Any, deadline_s: float | None) -> Payload:
        for _ in range(3):
            await request.emit(bytes(100))
        return bytes(1000)

    client = Client(2)
    answers = client.answers(answer, has_parts=True)
    await anext(answers)
    await ran()
    # Of the first request two parts, of the second three, and the last answers of both.
    assert client.num_held == 2500
    if is_read:
        assert [len(each) for each in [await anext(answers) for _ in range(2)]] == [100, 100]
        assert client.num_held == 2300
        assert len([each async for each in answers]) == 5
    await answers.aclose()
    assert client.num_held == 0


async def test_an_answer_that_may_not_wait_fails_its_request_alone() -> None:
    async def answer(body: Payload, deadline_s: float | None) -> Payload:
        return pb.ModelInferResponse(id="x" * 1000).SerializeToString()

    client = Client(4)
    client.most_held = 2500
    answers = client.answers(answer)
    first = [await anext(answers)]
    await ran()
    messages = [pb.ModelStreamInferResponse.FromString(each) async for each in answers]
    assert len(first[0]) > 1000
    assert sum("unread response bytes" in each.error_message for each in messages) == 1
    assert client.num_held == 0
