"""A service for the tests: handlers that say what they see, and are told when to go on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final, TypeVar

import grpc

SERVICE: Final = "test.Probe"
# Long enough for any loaded machine; reached only when a test fails.
LIMIT_S: Final = 30.0

Context = grpc.aio.ServicerContext  # generic for type checkers alone
Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """What it gives; an error when that takes far too long."""
    return await asyncio.wait_for(awaitable, LIMIT_S)


class Probe:
    """One service with a method of each shape.

    Attributes:
        metadata: of each call, in the order in which handlers began.
        began: a line for each handler that has begun to wait.
        ended: "cancelled" or "let go" for each handler that has waited.
        taken: messages that a handler of a stream took from the client.
        yielded: how many answers the client's windows have let Numbers send.
    """

    def __init__(self) -> None:
        self.metadata: list[list[tuple[str, str | bytes]]] = []
        self.began: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.taken: asyncio.Queue[bytes] = asyncio.Queue()
        self.yielded = 0
        self.gate = asyncio.Event()

    def handlers(self) -> Handlers:
        """All methods, by name."""
        unary, streaming = (
            grpc.unary_unary_rpc_method_handler,
            grpc.stream_stream_rpc_method_handler,
        )
        return {
            "Echo": unary(self.echo),
            "Hold": unary(self.hold),
            "Fail": unary(self.fail),
            "Refuse": unary(self.refuse),
            "Size": unary(self.size),
            "Blow": unary(self.blow),
            "Chat": streaming(self.chat),
            "Gated": streaming(self.gated),
            "Deaf": streaming(self.deaf),
            "Numbers": grpc.unary_stream_rpc_method_handler(self.numbers),
            "Letters": grpc.unary_stream_rpc_method_handler(self.letters),
            "Halfway": grpc.unary_stream_rpc_method_handler(self.halfway),
            "Join": grpc.stream_unary_rpc_method_handler(self.join),
        }

    def generic(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """The service, as a server takes it."""
        return grpc.method_handlers_generic_handler(SERVICE, dict(self.handlers()))

    def _note(self, context: Any) -> None:
        self.metadata.append([(name, value) for name, value in context.invocation_metadata()])

    async def echo(self, body: bytes, context: Any) -> bytes:
        """The request."""
        self._note(context)
        return body

    async def size(self, body: bytes, context: Any) -> bytes:
        """As many bytes as the request says."""
        return b"\x5a" * int(body)

    async def blow(self, body: bytes, context: Any) -> bytes:
        """As many bytes as the request has, and that number in the first ones."""
        return len(body).to_bytes(8, "big") + bytes(len(body))

    async def fail(self, body: bytes, context: Any) -> bytes:
        """What a handler with a fault does."""
        raise ValueError(body.decode())

    async def refuse(self, body: bytes, context: Any) -> bytes:
        """Aborts, with the request in what comes behind."""
        trailing = (("why", body.decode()),)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused", trailing)
        return b""

    async def hold(self, body: bytes, context: Any) -> bytes:
        """Waits for the gate."""
        await self._wait(body)
        return body

    async def _wait(self, body: bytes) -> None:
        self.began.put_nowait(body)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.ended.put_nowait("cancelled")
            raise
        self.ended.put_nowait("let go")

    async def chat(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Each request as it comes."""
        self._note(context)
        async for body in requests:
            self.taken.put_nowait(body)
            yield body

    async def gated(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Takes nothing before the gate opens; then says how long each request was."""
        await self._wait(b"")
        async for body in requests:
            yield b"%d" % len(body)

    async def deaf(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers without having read anything."""
        yield b"enough"

    async def numbers(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        """`b"count size"`: so many answers of that size, each beginning with its number."""
        count, size = map(int, body.split())
        try:
            for number in range(count):
                yield number.to_bytes(4, "big") + bytes(size - 4)
                self.yielded = number + 1
        except (asyncio.CancelledError, GeneratorExit):
            self.ended.put_nowait("cancelled")
            raise
        self.ended.put_nowait("let go")

    async def letters(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        """Fifty answers, whatever the request."""
        for letter in range(50):
            yield bytes([letter]) * 5000

    async def halfway(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        """Three answers of so many bytes, then an abort."""
        for letter in range(3):
            yield bytes([letter]) * int(body)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "halfway")

    async def join(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """All requests in one."""
        return b"".join([body async for body in requests])
