"""gRPC's own client: metadata both ways, statuses, deadlines, cancellation, limits."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from services.grpc_server.limits import Limits
from tests.integration.grpc_server.probe import LIMIT_S, SERVICE, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

Code = grpc.StatusCode
NON_BYTE = "abgelehnt: größer als 100 % \u2013 拒否 🚫\nline two\ttab \x7f"
TRAILING = (("retry-after", "3"), ("retry-after", "4"), ("why-bin", bytes(range(256))))
SENT = [
    ("plain", "value"),
    ("twice", "one"),
    ("twice", "two"),
    ("spaced", 'a  b, c;d="e"'),
    ("every-byte-bin", bytes(range(256))),
    ("none-bin", b""),
    ("one-bin", b"\xff"),
]


async def refusal_of(call: Any) -> Any:
    """The error with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await soon(call)
    return caught.value


async def test_the_handler_sees_the_metadata(host: "Host") -> None:
    await host.serve()
    await soon(host.unary()(b"", metadata=SENT))
    seen = [pair for pair in host.probe.metadata[0] if pair[0] not in ("user-agent", "te")]
    assert sorted(seen, key=lambda pair: pair[0]) == sorted(SENT, key=lambda pair: pair[0])


async def test_the_handler_sees_no_fields_of_the_protocol(host: "Host") -> None:
    await host.serve()
    await soon(host.unary()(b"", timeout=100))
    names = {name for name, _ in host.probe.metadata[0]}
    assert "user-agent" in names
    assert not {name for name in names if name.startswith((":", "grpc-"))}
    assert not names & {"te", "content-type"}


class Refusals:
    """Handlers that abort."""

    async def unary(self, body: bytes, context: Any) -> bytes:
        await context.abort(Code.FAILED_PRECONDITION, body.decode(), TRAILING)
        return b""

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for body in requests:
            yield b"before"
            await context.abort(Code.FAILED_PRECONDITION, body.decode(), TRAILING)

    def handlers(self) -> dict[str, Any]:
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Stream": grpc.stream_stream_rpc_method_handler(self.stream),
        }


@pytest.mark.parametrize("details", ["", "too much", NON_BYTE, "%", "x" * 2000])
async def test_abort(host: "Host", details: str) -> None:
    await host.serve(methods=Refusals().handlers())
    channel = host.channel()
    error = await refusal_of(channel.unary_unary("/test.More/Unary")(details.encode()))
    assert (error.code(), error.details()) == (Code.FAILED_PRECONDITION, details)
    assert tuple(map(tuple, error.trailing_metadata())) == TRAILING


async def test_abort_within_a_stream(host: "Host") -> None:
    await host.serve(methods=Refusals().handlers())
    call = host.channel().stream_stream("/test.More/Stream")()
    await call.write(NON_BYTE.encode())
    assert await soon(call.read()) == b"before"
    error = await refusal_of(call.read())
    assert (error.code(), error.details()) == (Code.FAILED_PRECONDITION, NON_BYTE)
    assert tuple(map(tuple, error.trailing_metadata())) == TRAILING


@pytest.mark.parametrize("path", ["/test.Probe/Nothing", "/test.Nobody/Echo", "/nonsense"])
async def test_an_unknown_method(host: "Host", path: str) -> None:
    await host.serve()
    error = await refusal_of(host.channel().unary_unary(path)(b""))
    assert error.code() is Code.UNIMPLEMENTED
    assert await soon(host.unary()(b"known")) == b"known"


async def test_a_handler_with_a_fault(host: "Host") -> None:
    await host.serve()
    channel = host.channel()
    error = await refusal_of(channel.unary_unary(f"/{SERVICE}/Fail")(b"at fault"))
    assert error.code() is Code.UNKNOWN
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"and on")) == b"and on"


@pytest.mark.parametrize("method", ["Hold", "Gated"])
async def test_a_deadline_passes(host: "Host", method: str) -> None:
    await host.serve()
    channel = host.channel()
    shape = channel.unary_unary if method == "Hold" else channel.stream_unary
    for timeout_s in (0.2, 2.0, LIMIT_S / 2):
        request: Any = b"x" if method == "Hold" else iter([b"x"])
        error = await refusal_of(shape(f"/{SERVICE}/{method}")(request, timeout=timeout_s))
        assert error.code() is Code.DEADLINE_EXCEEDED
        if not host.probe.began.empty():  # a slow machine may take longer to send it
            break
    assert await soon(host.probe.ended.get()) == "cancelled"


@pytest.mark.parametrize("timeout_s", [None, 30.0, 100.0, 100_000.0, 10_000_000.0])
async def test_the_time_that_remains(host: "Host", timeout_s: float | None) -> None:
    remaining: list[float | None] = []

    async def note(body: bytes, context: Any) -> bytes:
        remaining.append(context.time_remaining())
        return body

    await host.serve(methods={"Note": grpc.unary_unary_rpc_method_handler(note)})
    began_s = time.monotonic()
    await soon(host.channel().unary_unary("/test.More/Note")(b"", timeout=timeout_s))
    if timeout_s is None:
        assert remaining == [None]
    else:
        [left_s] = remaining
        assert left_s is not None
        # The client rounds what it sends up, to three digits or so.
        assert timeout_s - (time.monotonic() - began_s) <= left_s <= timeout_s * 1.01


@pytest.mark.parametrize("method", ["Hold", "Gated"])
async def test_a_client_cancels(host: "Host", method: str) -> None:
    await host.serve()
    channel = host.channel()
    shape = channel.unary_unary if method == "Hold" else channel.stream_stream
    call = shape(f"/{SERVICE}/{method}")(b"x" if method == "Hold" else iter([b"x"]))
    await soon(host.probe.began.get())
    call.cancel()
    assert await soon(host.probe.ended.get()) == "cancelled"
    assert await soon(channel.unary_unary(f"/{SERVICE}/Echo")(b"and on")) == b"and on"


async def test_a_client_goes(host: "Host") -> None:
    await host.serve()
    channel = host.channel()
    calls = [channel.unary_unary(f"/{SERVICE}/Hold")(b"x") for _ in range(10)]
    for _ in calls:
        await soon(host.probe.began.get())
    await channel.close()
    assert [await soon(host.probe.ended.get()) for _ in calls] == ["cancelled"] * 10


LIMITS = Limits(max_message_bytes=1000)


@pytest.mark.parametrize(
    ("method", "request_", "compression", "expected"),
    [
        ("Echo", bytes(1000), None, Code.OK),
        ("Echo", bytes(1001), None, Code.RESOURCE_EXHAUSTED),
        ("Echo", bytes(1000), grpc.Compression.Gzip, Code.OK),
        ("Echo", bytes(1001), grpc.Compression.Gzip, Code.RESOURCE_EXHAUSTED),
        ("Echo", bytes(10 << 20), grpc.Compression.Gzip, Code.RESOURCE_EXHAUSTED),
        ("Echo", bytes(1001), grpc.Compression.Deflate, Code.RESOURCE_EXHAUSTED),
        ("Size", b"1000", None, Code.OK),
        ("Size", b"1001", None, Code.RESOURCE_EXHAUSTED),
    ],
)
async def test_messages_at_and_above_the_limit(
    host: "Host", method: str, request_: bytes, compression: Any, expected: grpc.StatusCode
) -> None:
    await host.serve(LIMITS)
    call = host.unary(method, max_send_message_length=-1)(request_, compression=compression)
    assert await soon(call.code()) is expected


async def test_a_stream_with_a_message_above_the_limit(host: "Host") -> None:
    await host.serve(LIMITS)
    call = host.channel().stream_stream(f"/{SERVICE}/Chat")()
    await call.write(b"small")
    assert await soon(call.read()) == b"small"
    await call.write(bytes(1001))
    error = await refusal_of(call.read())
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert host.probe.taken.qsize() == 1


async def test_metadata_above_the_limit(host: "Host") -> None:
    await host.serve(Limits(max_metadata_bytes=1000))
    ask = host.unary()
    error = await refusal_of(ask(b"", metadata=[("long", "x" * 1000)]))
    assert error.code() is Code.RESOURCE_EXHAUSTED
    assert await soon(ask(b"", metadata=[("short", "x" * 100)])) == b""
    assert len(host.probe.metadata) == 1


async def test_the_peer_is_named(host: "Host") -> None:
    peers: list[str] = []

    async def note(body: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        await asyncio.sleep(0)
        return body

    await host.serve(methods={"Note": grpc.unary_unary_rpc_method_handler(note)})
    await soon(host.channel().unary_unary("/test.More/Note")(b""))
    assert peers[0].startswith("ipv4:127.0.0.1:")
