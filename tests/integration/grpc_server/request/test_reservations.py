"""Room for large requests, and clients that stand still in it, take no answers, or flood it."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from h2.settings import SettingCodes

from services.gateway.api.status_codes import StatusTable
from services.gateway.api.streaming import MAX_AHEAD, InferenceStreams
from services.grpc_server.limits import SMALL_BYTES, STREAM_WINDOW, Limits
from services.grpc_server.server_options import OverloadStatus
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.grpc_server import frames as f

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

MIB = 1 << 20
SMALL = f.message(pb.ModelInferRequest(model_name="m").SerializeToString())
LARGE = f.message(bytes(STREAM_WINDOW + MIB))
FIRST, REST = LARGE[:STREAM_WINDOW], LARGE[STREAM_WINDOW:]
INFER = [(k, "/test.More/Infer" if k == ":path" else v) for k, v in f.request_fields()]
NO_WINDOW = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
TOO_MUCH = 8
# A room that looks often at whoever makes no use of it.
IMPATIENT = Limits(max_upload_bytes=len(LARGE), stall_timeout_s=0.05)
CALLER: ContextVar[str] = ContextVar("caller", default="unset")


class Model:
    """Answers requests of streams as the gateway does.

    Attributes:
        num_asked: requests as yet.
        gate: of the answers.
        answer_bytes: of each.
    """

    def __init__(self, answer_bytes: int) -> None:
        self.num_asked, self.answer_bytes = 0, answer_bytes
        self.gate = asyncio.Event()
        self._streams = InferenceStreams(self._answer, StatusTable())

    async def _answer(self, body: Any, deadline_s: float | None) -> bytes:
        self.num_asked += 1
        await self.gate.wait()
        return bytes(self.answer_bytes)

    async def _infer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        async for message in self._streams.serve(requests, None, context):
            yield message

    def methods(self) -> Any:
        """As a server takes it."""
        return {"Infer": grpc.stream_stream_rpc_method_handler(self._infer)}


class Callers(list[Any]):
    """Keeps of whom is told in whose context that was."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def append(self, _: Any) -> None:
        """One more."""
        self.names.append(CALLER.get())


def first_part(stream: int = 1, fields: f.Fields | None = None) -> bytes:
    """A call and as much of its large request as may be sent without any grant."""
    return f.headers(stream, fields) + f.body(stream, FIRST, is_last=False, size=MIB)


async def let_on(client: "RawClient", stream: int = 1) -> None:
    """Wait for leave to send the rest."""
    await client.until(lambda: client.seen(stream).credit >= len(REST))


async def test_a_unary_call_that_is_not_ended_is_not_waited_for(host: "Host") -> None:
    await host.serve(IMPATIENT)
    bad, good = await host.dial(f.wide()), await host.dial(f.wide())
    await bad.send(first_part())
    await let_on(bad)
    await bad.send(f.body(1, REST, is_last=False, size=MIB))
    await bad.settled()
    await good.send(first_part())
    answer = await bad.answer(1)
    assert (answer.status, "too slowly" in answer.trailers["grpc-message"]) == (TOO_MUCH, True)
    await let_on(good)


async def test_a_small_message_does_not_stand_for_a_large_one_that_is_cut_off(host: "Host") -> None:
    await host.serve(IMPATIENT)
    bad, good = await host.dial(f.wide()), await host.dial(f.wide())
    # The small one is not taken while the large one begins.
    await bad.send(f.headers(1, f.request_fields("Gated")))
    await bad.send(f.body(1, f.message(b"x") + LARGE[: 3 * MIB], is_last=False, size=16_384))
    await bad.until(lambda: bad.seen(1).credit > 0)
    host.probe.gate.set()
    await good.send(first_part())
    assert (await bad.answer(1)).status == TOO_MUCH
    await let_on(good)


@pytest.mark.parametrize("num_small", [MAX_AHEAD, 2 * MAX_AHEAD], ids=["next", "later"])
async def test_a_stream_whose_answers_are_not_taken_is_not_waited_for(
    host: "Host", num_small: int
) -> None:
    """Its large request is here, and would be taken once earlier answers were."""
    # So large that a handler waits with the second one.
    model = Model(300_000)
    model.gate.set()
    await host.serve(IMPATIENT, methods=model.methods())
    deaf, good = await host.dial(f.greeting(NO_WINDOW)), await host.dial(f.wide())
    await deaf.send(f.headers(1, INFER), f.body(1, SMALL * num_small, is_last=False))
    await deaf.settled()
    await deaf.send(f.body(1, LARGE[: 3 * MIB], is_last=False, size=MIB))
    await deaf.until(lambda: deaf.seen(1).credit > 0)
    await deaf.send(f.body(1, LARGE[3 * MIB :], is_last=False, size=MIB))
    await deaf.settled()
    await good.send(first_part())
    await let_on(good)
    # What it has not taken is still there for it.
    await deaf.send(f.window_update(0, MIB), f.window_update(1, MIB))
    answer = await deaf.answer(1)
    assert (answer.status, "not read" in answer.trailers["grpc-message"]) == (TOO_MUCH, True)
    assert len(answer.messages) == 1


async def test_a_stream_is_waited_for_while_its_answers_are_made_and_while_they_are_taken(
    host: "Host",
) -> None:
    model = Model(65_000)
    await host.serve(Limits(max_upload_bytes=len(LARGE)), methods=model.methods())
    slow, other = await host.dial(f.greeting(NO_WINDOW, 30 * MIB)), await host.dial(f.wide())
    await slow.send(f.headers(1, INFER), f.body(1, SMALL * 2 * MAX_AHEAD, is_last=False))
    await slow.settled()
    await slow.send(f.body(1, LARGE[: 3 * MIB], is_last=False, size=MIB))
    await slow.until(lambda: slow.seen(1).credit > 0)
    await slow.send(f.body(1, LARGE[3 * MIB :], size=MIB))
    await other.send(first_part())
    await other.settled()
    for _ in range(3):
        host.server.check_progress()
    model.gate.set()
    for _ in range(14):
        # More than what waits at a time, and never all of them.
        await slow.send(f.window_update(1, 350_000))
        await slow.settled()
        host.server.check_progress()
    assert (slow.seen(1).is_ended, other.seen(1).credit) == (False, 0)
    # Now it stops.
    host.server.check_progress()
    await let_on(other)
    assert host.ended() == [("Infer", "RESOURCE_EXHAUSTED")]


async def test_a_request_of_a_stream_keeps_its_room_until_its_answer_is_made(
    host: "Host",
) -> None:
    model = Model(1024)
    second = f.message(bytes(2 * STREAM_WINDOW))
    await host.serve(Limits(max_upload_bytes=len(second)), methods=model.methods())
    client, other = await host.dial(f.wide()), await host.dial(f.wide())

    def left() -> int:
        return STREAM_WINDOW + client.seen(1).credit - len(LARGE) - STREAM_WINDOW

    await client.send(first_part(1, INFER))
    await let_on(client)
    await client.send(f.body(1, REST, is_last=False, size=MIB))
    await client.settled()
    assert model.num_asked == 1
    # Its next one waits, and so do others; it stands in the way of none that was before it.
    await client.send(f.body(1, second[:STREAM_WINDOW], is_last=False, size=MIB))
    await client.settled()
    await other.send(first_part())
    await other.settled()
    assert (left() <= MIB, other.seen(1).credit) == (True, 0)
    model.gate.set()
    await client.until(lambda: left() >= STREAM_WINDOW)
    await client.send(f.body(1, second[STREAM_WINDOW:-5], is_last=False, size=MIB))
    assert other.seen(1).credit == 0
    answer = await client.ask(f.body(1, second[-5:]))
    assert (answer.status, len(answer.messages)) == (0, 2)
    await let_on(other)


async def test_a_stream_that_is_given_up_gives_its_room_back(host: "Host") -> None:
    model = Model(1024)
    await host.serve(Limits(max_upload_bytes=len(LARGE)), methods=model.methods())
    client, other = await host.dial(f.wide()), await host.dial(f.wide())
    await client.send(first_part(1, INFER))
    await let_on(client)
    await client.send(f.body(1, REST, is_last=False, size=MIB))
    await client.settled()
    await other.send(first_part())
    await other.settled()
    assert (model.num_asked, other.seen(1).credit) == (1, 0)
    await client.send(f.rst_stream(1))
    await let_on(other)


async def test_no_more_than_a_few_wait_for_room(host: "Host") -> None:
    overload = OverloadStatus(grpc.StatusCode.UNAVAILABLE, (("retry-after-ms", "50"),))
    await host.serve(Limits(max_upload_bytes=len(LARGE)), overload=overload)
    client = await host.dial(f.wide())
    streams = range(1, 41, 2)
    for stream in streams:
        method = "Gated" if stream % 4 == 1 else "Echo"
        await client.send(first_part(stream, f.request_fields(method)))
    await client.settled()
    # One has room, eight wait.
    assert [stream for stream in streams if not client.seen(stream).is_ended] == list(streams[:9])
    refused = client.seen(streams[9])
    assert (refused.status, "upload memory" in refused.trailers["grpc-message"]) == (14, True)
    assert refused.trailers["retry-after-ms"] == "50"
    assert {(each.code.name, each.is_overload) for each in host.unhandled} == {
        ("UNAVAILABLE", True)
    }
    assert await client.goes_on(101)


async def test_requests_of_4_mib_need_no_room(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=1))
    holder, client = await host.dial(f.wide()), await host.dial(f.wide())
    await holder.send(first_part())
    await let_on(holder)
    sent = f.message(bytes(SMALL_BYTES))
    await client.send(f.headers(1), f.body(1, sent[: 3 * MIB], is_last=False, size=MIB))
    await client.until(lambda: client.seen(1).credit > 0)
    assert (await client.ask(f.body(1, sent[3 * MIB :], size=MIB))).status == 0


async def test_a_large_compressed_request_needs_room_for_what_it_may_become(host: "Host") -> None:
    await host.serve(Limits(max_upload_bytes=59 * MIB, max_decompressed_bytes=50 * MIB))
    plain, packed = await host.dial(f.wide()), await host.dial(f.wide())
    noise = np.random.default_rng(0).bytes(STREAM_WINDOW + MIB)
    sent = f.message(gzip.compress(noise, 1), flag=1)
    fields = f.request_fields("Echo", [("grpc-encoding", "gzip")])
    begun = f.body(1, sent[:STREAM_WINDOW], is_last=False, size=MIB)
    await packed.send(f.headers(1, fields), begun)
    await let_on(packed)
    for stream in (1, 3):
        await plain.send(first_part(stream))
    await plain.settled()
    assert [plain.seen(stream).credit > 0 for stream in (1, 3)] == [True, False]
    answer = await packed.ask(f.body(1, sent[STREAM_WINDOW:], size=MIB))
    assert answer.messages == [noise]
    await let_on(plain, 3)


async def test_a_log_of_an_ended_request_does_not_name_who_waits(host: "Host") -> None:
    """What is logged of one names its caller by a context variable."""
    gate = asyncio.Event()

    async def infer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        CALLER.set("alice")
        await gate.wait()
        async for _ in requests:
            yield b"ok"

    handler = grpc.stream_stream_rpc_method_handler(infer)
    host.unhandled = seen = Callers()
    await host.serve(IMPATIENT, methods={"Infer": handler})
    bob, alice = await host.dial(f.wide()), await host.dial(f.wide())
    await bob.send(first_part())
    await let_on(bob)
    await alice.send(f.headers(1, INFER))
    sent = f.message(bytes(MIB + MIB // 2)) + LARGE[:MIB]
    await alice.send(f.body(1, sent, is_last=False))
    await alice.settled()
    # She asks for room herself, as she takes what came before.
    gate.set()
    assert (await bob.answer(1)).status == TOO_MUCH
    # On a busy host alice may be ended as well.
    assert set(seen.names) == {"unset"}
