"""gRPC's own client: the four shapes of calls, their bytes, many at once."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.grpc_server.http2.frames import ACK, PING
from services.grpc_server.http2.streams import Streams
from tests.integration.grpc_server.probe import LIMIT_S, SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

LARGE = 20 << 20
END: Any = grpc.aio.EOF  # type: ignore[attr-defined] # stubs do not know it
WORDS = [b"", b"one", b"2" * 100_000, b"\x00" * 70_000]


async def words() -> AsyncIterator[bytes]:
    for word in WORDS:
        yield word


async def test_unary_unary(host: "Host") -> None:
    await host.serve()
    ask = host.unary()
    assert [await soon(ask(word)) for word in WORDS] == WORDS


async def test_unary_stream(host: "Host") -> None:
    await host.serve()
    numbers = host.channel().unary_stream(f"/{SERVICE}/Numbers")
    answers = [answer async for answer in numbers(b"300 1000")]
    assert answers == [number.to_bytes(4, "big") + bytes(996) for number in range(300)]


async def test_unary_stream_without_answers(host: "Host") -> None:
    await host.serve()
    numbers = host.channel().unary_stream(f"/{SERVICE}/Numbers")
    assert [answer async for answer in numbers(b"0 4")] == []


async def test_stream_unary(host: "Host") -> None:
    await host.serve()
    join = host.channel().stream_unary(f"/{SERVICE}/Join")
    assert await soon(join(words())) == b"".join(WORDS)


async def test_stream_unary_without_requests(host: "Host") -> None:
    await host.serve()
    join = host.channel().stream_unary(f"/{SERVICE}/Join")
    assert await soon(join(iter([]))) == b""


async def test_stream_stream(host: "Host") -> None:
    await host.serve()
    chat = host.channel().stream_stream(f"/{SERVICE}/Chat")
    assert [answer async for answer in chat(words())] == WORDS


async def test_stream_stream_in_turns(host: "Host") -> None:
    await host.serve()
    call = host.channel().stream_stream(f"/{SERVICE}/Chat")()
    for word in WORDS * 5:
        await call.write(word)
        assert await soon(call.read()) == word
    await call.done_writing()
    assert await soon(call.read()) is END
    assert await call.code() is grpc.StatusCode.OK


async def test_the_answer_comes_before_the_requests_have_ended(host: "Host") -> None:
    await host.serve()
    call = host.channel().stream_stream(f"/{SERVICE}/Deaf")()
    assert await soon(call.read()) == b"enough"
    assert await soon(call.read()) is END
    assert await soon(call.code()) is grpc.StatusCode.OK


async def test_the_answer_comes_before_a_request_larger_than_every_window(host: "Host") -> None:
    await host.serve()
    channel = host.channel(max_send_message_length=-1)
    deaf = channel.stream_stream(f"/{SERVICE}/Deaf")
    answers = [answer async for answer in deaf(iter([bytes(LARGE)] * 3))]
    assert answers == [b"enough"]
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"and on")) == b"and on"


@pytest.mark.parametrize("gives_back", [True, False])
async def test_large_messages(host: "Host", gives_back: bool) -> None:
    await host.serve()
    request = random.Random(0).randbytes(LARGE)
    ask = host.unary("Echo" if gives_back else "Blow", max_send_message_length=-1)
    answer = await soon(ask(request))
    assert answer == (request if gives_back else len(request).to_bytes(8, "big") + bytes(LARGE))


async def test_many_calls_at_once_each_get_their_own_answer(host: "Host") -> None:
    await host.serve()
    ask, dice = host.unary(), random.Random(1)
    requests = [b"%d " % number + dice.randbytes(dice.randrange(3000)) for number in range(500)]
    assert await soon(asyncio.gather(*map(ask, requests))) == requests


async def test_many_streams_at_once(host: "Host") -> None:
    await host.serve()
    chat = host.channel().stream_stream(f"/{SERVICE}/Chat")

    async def talk(number: int) -> None:
        said = [b"%d %d" % (number, turn) for turn in range(20)]
        assert [answer async for answer in chat(iter(said))] == said

    await soon(asyncio.gather(*map(talk, range(50))))


async def test_calls_that_wait_do_not_hold_up_others(host: "Host") -> None:
    await host.serve()
    channel = host.channel()
    held = [channel.unary_unary(f"/{SERVICE}/Hold")(b"%d" % n) for n in range(100)]
    began = {await soon(host.probe.began.get()) for _ in held}
    assert len(began) == 100
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"past them")) == b"past them"
    host.probe.gate.set()
    assert await soon(asyncio.gather(*held)) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("algorithm", ["Gzip", "Deflate"])
async def test_compressed_requests(host: "Host", algorithm: str) -> None:
    await host.serve()
    compression = getattr(grpc.Compression, algorithm)
    channel = host.channel()
    ask = channel.unary_unary(f"/{SERVICE}/Echo")
    request = b"compressible " * 10_000
    assert await soon(ask(request, compression=compression)) == request
    chat = channel.stream_stream(f"/{SERVICE}/Chat")(words(), compression=compression)
    assert [answer async for answer in chat] == WORDS


async def test_keepalive_pings_are_answered(host: "Host", monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends the next one once the last was answered, and no sooner."""
    pinged, take = asyncio.Semaphore(0), Streams.frame

    def watched(self: Streams, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == PING and not flags & ACK:
            pinged.release()
        take(self, kind, flags, stream_id, payload)

    monkeypatch.setattr(Streams, "frame", watched)
    await host.serve()
    options = {
        "keepalive_time_ms": 10,
        "http2.max_pings_without_data": 0,
        "keepalive_permit_without_calls": 1,
    }
    call = host.channel(None, **options).stream_stream(f"/{SERVICE}/Chat")()
    for turn in range(5):
        await call.write(b"%d" % turn)
        assert await soon(call.read()) == b"%d" % turn
        await soon(pinged.acquire())
    await call.done_writing()
    assert await soon(call.code()) is grpc.StatusCode.OK


async def test_a_blocking_client(host: "Host") -> None:
    await host.serve()

    def work() -> list[Any]:
        with grpc.insecure_channel(f"127.0.0.1:{host.port}") as opened:
            channel: Any = opened
            ask = channel.unary_unary(f"/{SERVICE}/Echo")
            chat = channel.stream_stream(f"/{SERVICE}/Chat")
            later = [ask.future(b"%d" % n) for n in range(50)]
            return [[each.result(timeout=LIMIT_S) for each in later], list(chat(iter(WORDS)))]

    assert await asyncio.to_thread(work) == [[b"%d" % n for n in range(50)], WORDS]
