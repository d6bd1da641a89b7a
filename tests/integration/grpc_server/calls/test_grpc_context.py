"""What handlers are given of their calls is what gRPC's own servers give."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.grpc_server.calls.servicer_context import ServicerContext
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

Code = grpc.StatusCode
ECHO = (("x-grpc-test-echo-initial", "initial"), ("x-grpc-test-echo-trailing-bin", b"\xab\xab"))


def echo_metadata(context: Any) -> Any:
    """Send the client's own back, as gRPC's interoperability case `custom_metadata` wants it."""
    found = dict(context.invocation_metadata())
    context.set_trailing_metadata([(ECHO[1][0], found[ECHO[1][0]])])
    return context.send_initial_metadata([(ECHO[0][0], found[ECHO[0][0]])])


async def unary(body: bytes, context: Any) -> bytes:
    """One answer with metadata around it."""
    await echo_metadata(context)
    return body


async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Several."""
    await echo_metadata(context)
    async for body in requests:
        yield body


async def writes(_: AsyncIterator[bytes], context: Any) -> None:
    """Reads and writes by itself."""
    while (body := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        await context.write(body)


def test_nothing_is_missing() -> None:
    names = {name for name in dir(grpc.aio.ServicerContext) if not name.startswith("_")}
    assert names <= set(dir(ServicerContext))


async def test_metadata_around_one_answer(host: "Host") -> None:
    await host.serve(methods={"Unary": grpc.unary_unary_rpc_method_handler(unary)})
    call = host.channel().unary_unary("/test.More/Unary")(b"x", metadata=ECHO)
    assert await soon(call) == b"x"
    assert ECHO[0] in tuple(await call.initial_metadata())
    assert tuple(await call.trailing_metadata()) == ECHO[1:]


@pytest.mark.parametrize("behaviour", [stream, writes])
async def test_answers_of_a_stream(host: "Host", behaviour: Callable[..., Any]) -> None:
    await host.serve(methods={"Chat": grpc.stream_stream_rpc_method_handler(behaviour)})
    call = host.channel().stream_stream("/test.More/Chat")(metadata=ECHO)
    for body in (b"one", b"two"):
        await call.write(body)
        assert await soon(call.read()) == body
    await call.done_writing()
    assert await soon(call.code()) is Code.OK
    if behaviour is stream:
        assert ECHO[0] in tuple(await call.initial_metadata())
        assert tuple(await call.trailing_metadata()) == ECHO[1:]


async def test_a_method_that_a_servicer_does_not_have(host: "Host") -> None:
    await host.serve()
    health_pb2_grpc.add_HealthServicer_to_server(health_pb2_grpc.HealthServicer(), host.server)
    stub = health_pb2_grpc.HealthStub(host.channel())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await soon(stub.Check(health_pb2.HealthCheckRequest()))
    assert error.value.code() is Code.UNIMPLEMENTED
    assert error.value.details() == "Method not implemented!"
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await soon(stub.Watch(health_pb2.HealthCheckRequest()).read())
    assert error.value.code() is Code.UNIMPLEMENTED


@pytest.mark.parametrize("is_raised", [False, True])
async def test_a_status_that_is_set(host: "Host", is_raised: bool) -> None:
    async def refuse(_: bytes, context: Any) -> Any:
        context.set_code(Code.NOT_FOUND)
        context.set_details("no such thing")
        context.set_trailing_metadata((("why", "gone"),))
        assert (context.code(), context.details()) == (Code.NOT_FOUND, "no such thing")
        if is_raised:
            raise ValueError("not seen")

    await host.serve(methods={"Refuse": grpc.unary_unary_rpc_method_handler(refuse)})
    call = host.channel().unary_unary("/test.More/Refuse")(b"")
    assert (await soon(call.code()), await call.details()) == (Code.NOT_FOUND, "no such thing")
    assert tuple(await call.trailing_metadata()) == (("why", "gone"),)


async def test_an_abort_keeps_the_metadata_that_was_set(host: "Host") -> None:
    async def refuse(_: bytes, context: Any) -> None:
        context.set_trailing_metadata((("why", "gone"),))
        await context.abort(Code.ABORTED, "now")

    await host.serve(methods={"Refuse": grpc.unary_unary_rpc_method_handler(refuse)})
    call = host.channel().unary_unary("/test.More/Refuse")(b"")
    assert await soon(call.code()) is Code.ABORTED
    assert tuple(await call.trailing_metadata()) == (("why", "gone"),)


async def test_initial_metadata_comes_once(host: "Host") -> None:
    async def twice(body: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("a", "1"),))
        with pytest.raises(RuntimeError):
            await context.send_initial_metadata((("a", "2"),))
        return body

    await host.serve(methods={"Twice": grpc.unary_unary_rpc_method_handler(twice)})
    call = host.channel().unary_unary("/test.More/Twice")(b"x")
    assert await soon(call) == b"x"
    assert ("a", "1") in tuple(await call.initial_metadata())


async def test_the_end_is_told(host: "Host") -> None:
    contexts: asyncio.Queue[Any] = asyncio.Queue()
    ended: asyncio.Queue[Any] = asyncio.Queue()

    async def wait(body: bytes, context: Any) -> bytes:
        context.add_done_callback(ended.put_nowait)
        contexts.put_nowait(context)
        if body:
            await asyncio.Event().wait()
        return body

    await host.serve(methods={"Wait": grpc.unary_unary_rpc_method_handler(wait)})
    ask = host.channel().unary_unary("/test.More/Wait")
    assert await soon(ask(b"")) == b""
    context = await contexts.get()
    assert await soon(ended.get()) is context
    assert (context.done(), context.cancelled()) == (True, False)
    call = ask(b"for ever")
    context = await soon(contexts.get())
    assert not context.done()
    call.cancel()
    assert await soon(ended.get()) is context
    assert (context.done(), context.cancelled()) == (True, True)
