"""gRPC's sixteen interoperability cases for servers, on this server and on gRPC's own.

Names are those of its `interop-test-descriptions.md`. Left out: cases of credentials that need
Google's cloud, `cacheable_unary` (GET through a proxy), and `server_compressed_*`, as this server
compresses no answers. `client_compressed_*` run without their probe: handlers in Python are not
told how a message was compressed.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from services.grpc_server.aio_server import AioServer
from services.grpc_server.server import GrpcServer
from tests.integration.grpc_server.calls.interop_service import (
    ECHO_INITIAL,
    ECHO_TRAILING,
    PACKAGE,
    TestService,
    new,
    payload,
    stub,
)
from tests.integration.grpc_server.probe import soon

Code = grpc.StatusCode
REQUEST_SIZE, RESPONSE_SIZE = 271_828, 314_159
SIZES = (31_415, 9, 2_653, 58_979)
SENT_SIZES = (27_182, 8, 1_828, 45_904)
METADATA = ((ECHO_INITIAL, "test_initial_metadata_value"), (ECHO_TRAILING, b"\xab\xab\xab"))
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


@pytest.fixture(params=[GrpcServer, AioServer])
async def address(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Of a server with the service."""
    server = request.param()
    server.add_generic_rpc_handlers((TestService().handler(),))
    port = await server.start("127.0.0.1", 0)
    yield f"127.0.0.1:{port}"
    await server.stop(0)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Any]:
    """Of a client of gRPC's own, to that server."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


def large(**fields: Any) -> Any:
    """The request of most unary cases."""
    return new(
        "SimpleRequest", response_size=RESPONSE_SIZE, payload=payload(REQUEST_SIZE), **fields
    )


def outputs(sizes: tuple[int, ...], sent: int = 0) -> Any:
    """A request for payloads of these sizes."""
    wanted = [new("ResponseParameters", size=size) for size in sizes]
    return new("StreamingOutputCallRequest", response_parameters=wanted, payload=payload(sent))


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Code and details with which a call ends."""
    return await soon(call.code()), await soon(call.details())


async def unary(channel: Any, **options: Any) -> None:
    """One large call."""
    answer = await soon(stub(channel, "UnaryCall")(large(), **options))
    assert answer.payload.body == bytes(RESPONSE_SIZE)


async def inputs(channel: Any, sizes: tuple[int, ...], **options: Any) -> int:
    """How many bytes of a stream have come."""
    call = stub(channel, "StreamingInputCall")(**options)
    for size in sizes:
        await call.write(new("StreamingInputCallRequest", payload=payload(size)))
    await call.done_writing()
    return int((await soon(call)).aggregated_payload_size)


async def test_empty_unary(channel: Any) -> None:
    assert await soon(stub(channel, "EmptyCall")(new("Empty"))) == new("Empty")


async def test_large_unary(channel: Any) -> None:
    await unary(channel)


async def test_client_compressed_unary(channel: Any) -> None:
    for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
        await unary(channel, compression=compression)


async def test_client_streaming(channel: Any) -> None:
    assert await inputs(channel, SENT_SIZES) == 74_922


async def test_client_compressed_streaming(channel: Any) -> None:
    sizes = (SENT_SIZES[0], SENT_SIZES[3])
    assert await inputs(channel, sizes, compression=grpc.Compression.Gzip) == 73_086


async def test_server_streaming(channel: Any) -> None:
    call = stub(channel, "StreamingOutputCall")(outputs(SIZES))
    assert [len(answer.payload.body) async for answer in call] == list(SIZES)


async def test_ping_pong(channel: Any) -> None:
    call = stub(channel, "FullDuplexCall")()
    for size, sent in zip(SIZES, SENT_SIZES, strict=True):
        await call.write(outputs((size,), sent))
        assert len((await soon(call.read())).payload.body) == size
    await call.done_writing()
    assert await soon(call.read()) is grpc.aio.EOF  # type: ignore[attr-defined] # stubs lack it
    assert await soon(call.code()) is Code.OK


async def test_empty_stream(channel: Any) -> None:
    call = stub(channel, "FullDuplexCall")()
    await call.done_writing()
    assert [answer async for answer in call] == []
    assert await soon(call.code()) is Code.OK


async def test_custom_metadata(channel: Any) -> None:
    single = stub(channel, "UnaryCall")(large(), metadata=METADATA)
    stream = stub(channel, "FullDuplexCall")(metadata=METADATA)
    await stream.write(outputs((RESPONSE_SIZE,), REQUEST_SIZE))
    await stream.done_writing()
    assert [len(answer.payload.body) async for answer in stream] == [RESPONSE_SIZE]
    for call in (single, stream):
        assert METADATA[0] in tuple(await soon(call.initial_metadata()))
        assert METADATA[1] in tuple(await soon(call.trailing_metadata()))
        assert await soon(call.code()) is Code.OK


async def test_status_code_and_message(channel: Any) -> None:
    details = "test status message"
    status = new("EchoStatus", code=Code.UNKNOWN.value[0], message=details)
    single = stub(channel, "UnaryCall")(new("SimpleRequest", response_status=status))
    stream = stub(channel, "FullDuplexCall")()
    await stream.write(new("StreamingOutputCallRequest", response_status=status))
    await stream.done_writing()
    for call in (single, stream):
        assert await status_of(call) == (Code.UNKNOWN, details)


async def test_special_status_message(channel: Any) -> None:
    status = new("EchoStatus", code=Code.UNKNOWN.value[0], message=SPECIAL)
    call = stub(channel, "UnaryCall")(new("SimpleRequest", response_status=status))
    assert await status_of(call) == (Code.UNKNOWN, SPECIAL)


async def test_unimplemented_method(channel: Any) -> None:
    call = stub(channel, "UnimplementedCall")(new("Empty"))
    assert (await status_of(call))[0] is Code.UNIMPLEMENTED


async def test_unimplemented_service(channel: Any) -> None:
    service = f"{PACKAGE}.UnimplementedService"
    call = stub(channel, "UnimplementedCall", service)(new("Empty"))
    assert (await status_of(call))[0] is Code.UNIMPLEMENTED


async def test_cancel_after_begin(channel: Any) -> None:
    call = stub(channel, "StreamingInputCall")()
    call.cancel()
    assert await soon(call.code()) is Code.CANCELLED


async def test_cancel_after_first_response(channel: Any) -> None:
    call = stub(channel, "FullDuplexCall")()
    await call.write(outputs(SIZES[:1], SENT_SIZES[0]))
    assert len((await soon(call.read())).payload.body) == SIZES[0]
    call.cancel()
    assert await soon(call.code()) is Code.CANCELLED


async def test_timeout_on_sleeping_server(address: str) -> None:
    # Not by grpc.aio, whose client says INTERNAL where a deadline passes before a write.
    is_over = threading.Event()

    def requests() -> Iterator[Any]:
        yield outputs((), SENT_SIZES[0])
        # The call ends when its requests do.
        is_over.wait()

    def status() -> grpc.StatusCode:
        with grpc.insecure_channel(address) as channel:
            try:
                return stub(channel, "FullDuplexCall")(requests(), timeout=0.001).code()
            finally:
                is_over.set()

    assert await soon(asyncio.to_thread(status)) is Code.DEADLINE_EXCEEDED
