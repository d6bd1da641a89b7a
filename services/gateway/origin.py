"""Where a request came from, for whoever watches requests; nothing here runs when nobody does."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.gateway.access.gate import Metadata
from services.grpc_server.context import Context

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]

_Behaviour = Callable[[Any, Context], Awaitable[bytes]]
_Stream = Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]
# The RPCs that requests for models come with.
INFERENCE_METHODS: Final = frozenset({"ModelInfer", "ModelStreamInfer"})


@dataclass(slots=True)
class Origin:
    """The call of an RPC that requests come with: one, or many on a stream.

    Attributes:
        metadata: as the client sent it.
        refused: the status with which the call, or a request of its stream, was refused before
            it reached inference; the last one.
    """

    rpc: str
    peer: str
    metadata: Metadata
    refused: grpc.StatusCode | None = None


ORIGIN: ContextVar[Origin | None] = ContextVar("smelt_origin", default=None)
# A call of which something was refused at the gate, the status and the call's seconds.
OnRefused = Callable[[Origin, grpc.StatusCode, float], None]


def note_refusal(code: grpc.StatusCode) -> None:
    """The call being served is refused, or a part of it; gRPC does not say so afterwards."""
    if origin := ORIGIN.get():
        origin.refused = code


def with_origin(handlers: "Mapping[str, Handler]", on_refused: OnRefused) -> "dict[str, Handler]":
    """The same handlers; those of inference say where their requests come from."""
    wrapped = {name: _wrapped(name, handlers[name], on_refused) for name in INFERENCE_METHODS}
    return {**handlers, **wrapped}


def _wrapped(name: str, handler: "Handler", on_refused: OnRefused) -> "Handler":
    # The types say what handlers of a blocking server are.
    behaviour: _Behaviour | None = handler.unary_unary  # type: ignore[assignment]
    if behaviour is None:
        return _wrapped_stream(name, handler, on_refused)

    async def ask(body: bytes, context: Context) -> bytes:
        origin, began_s = _begin(name, context), time.monotonic()
        try:
            return await behaviour(body, context)
        finally:
            _end(origin, began_s, on_refused)

    return grpc.unary_unary_rpc_method_handler(ask)


def _wrapped_stream(name: str, handler: "Handler", on_refused: OnRefused) -> "Handler":
    behaviour: _Stream = handler.stream_stream  # type: ignore[assignment]

    async def ask(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        origin, began_s = _begin(name, context), time.monotonic()
        try:
            async for answer in behaviour(requests, context):
                yield answer
                # As in `serving`.
                del answer
        finally:
            _end(origin, began_s, on_refused)

    return grpc.stream_stream_rpc_method_handler(ask)


def _begin(name: str, context: Context) -> Origin:
    origin = Origin(name, context.peer(), context.invocation_metadata() or ())
    ORIGIN.set(origin)
    return origin


def _end(origin: Origin, began_s: float, on_refused: OnRefused) -> None:
    if origin.refused is not None:
        on_refused(origin, origin.refused, time.monotonic() - began_s)
