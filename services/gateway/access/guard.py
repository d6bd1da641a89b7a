"""Puts the gate before RPC handlers: who asks, and whether that one may."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.contracts.errors import SmeltError
from services.gateway.access.caller import CALLER_NAME
from services.gateway.access.document import Verb
from services.gateway.access.gate import Gate, Metadata
from services.gateway.handlers import SERVICE
from services.gateway.origin import INFERENCE_METHODS, note_refusal
from services.gateway.request_head import request_head_from_bytes
from services.gateway.status_codes import StatusTable
from services.gateway.streaming import Incoming
from services.grpc_server.context import Context
from services.grpc_server.server_options import Check
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]

Behaviour = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[AsyncIterator[Any], Context], AsyncIterator[bytes]]

# Load balancers and clients ask these before they have a token, and learn no secret.
OPEN_METHODS: Final = frozenset({"ServerLive", "ServerReady", "ServerMetadata"})
_GUARDED: Final = f"/{SERVICE.full_name}/"
# About one model, for whoever may do anything with it.
_QUESTIONS: Final = frozenset({"ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"})


def guarded(
    handlers: "Mapping[str, Handler]", gate: Gate, statuses: StatusTable, recorder: Recorder
) -> "dict[str, Handler]":
    """The same handlers, each behind the gate; what is not known here is for admins."""

    def refused(name: str, code: grpc.StatusCode) -> None:
        note_refusal(code)
        if name in INFERENCE_METHODS:
            # Without a model's name: whoever may not ask shall not choose our labels.
            recorder.count(catalog.REQUESTS, model="", version="", code=code.name)

    return {
        name: handler if name in OPEN_METHODS else _guarded(name, handler, gate, statuses, refused)
        for name, handler in handlers.items()
    }


def early_check(gate: Gate, statuses: StatusTable) -> Check:
    """Refuses whoever has no token that is believed, before the rest of a large request comes.

    What it lets pass the handlers behind the gate look at once more, with the request.
    """

    async def check(path: str, context: Context) -> None:
        if path.rpartition("/")[2] in OPEN_METHODS or not path.startswith(_GUARDED):
            return
        try:
            await gate.caller_of(context.invocation_metadata() or ())
        except Exception as error:
            refusal = statuses.refusal_of(error)
            await context.abort(refusal.code, refusal.details, refusal.trailing)

    return check


def _guarded(
    name: str,
    handler: "Handler",
    gate: Gate,
    statuses: StatusTable,
    on_refused: Callable[[str, grpc.StatusCode], None],
) -> "Handler":
    # The types say what handlers of a blocking server are.
    behaviour: Behaviour | None = handler.unary_unary  # type: ignore[assignment]
    if behaviour is None:
        return _guarded_stream(handler, gate, statuses, partial(on_refused, name))
    verb, model_of = _need(name)

    async def checked(request: Any, context: Context) -> Any:
        try:
            caller = await gate.caller_of(context.invocation_metadata() or ())
            CALLER_NAME.set(caller.name)
            if isinstance(request, SmeltError):
                raise request  # its bytes are no message; see `handlers`
            caller.require(verb, model_of(request))
        except Exception as error:
            refusal = statuses.refusal_of(error)
            on_refused(name, refusal.code)
            await context.abort(refusal.code, refusal.details, refusal.trailing)
        return await behaviour(request, context)

    return grpc.unary_unary_rpc_method_handler(
        checked,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _guarded_stream(
    handler: "Handler",
    gate: Gate,
    statuses: StatusTable,
    on_refused: Callable[[grpc.StatusCode], None],
) -> "Handler":
    """ModelStreamInfer: who asks, and what, is looked at with each request of the stream."""
    behaviour: Stream = handler.stream_stream  # type: ignore[assignment]

    async def checked(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        metadata = tuple(context.invocation_metadata() or ())
        try:
            CALLER_NAME.set((await gate.caller_of(metadata)).name)
        except Exception as error:
            refusal = statuses.refusal_of(error)
            on_refused(refusal.code)
            await context.abort(refusal.code, refusal.details, refusal.trailing)

        def on_error(error: Exception) -> None:
            on_refused(statuses.code_of(error))

        async for answer in behaviour(_permitted(requests, gate, metadata, on_error), context):
            yield answer
            del answer

    return grpc.stream_stream_rpc_method_handler(checked)


async def _permitted(
    requests: AsyncIterator[bytes],
    gate: Gate,
    metadata: Metadata,
    on_error: Callable[[Exception], None],
) -> AsyncIterator[Incoming]:
    """Each request, or why it may not be asked: tokens expire while a stream is open."""
    async for body in requests:
        try:
            caller = await gate.caller_of(metadata)
            caller.require(Verb.INFER, request_head_from_bytes(body).model_name)
        except Exception as error:
            # Whatever it is: one request fails, and is told why as any other.
            on_error(error)
            yield error
        else:
            yield body
        # A stream that idles holds nothing of what was asked before.
        del body


def _need(name: str) -> tuple[Verb | None, Callable[[Any], str]]:
    """The verb that a method wants, and where its request says the model."""
    if name == "ModelInfer":
        return Verb.INFER, lambda body: request_head_from_bytes(body).model_name
    if name in _QUESTIONS:
        return None, lambda request: str(request.name)
    if name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        return Verb.LOAD, lambda request: str(request.model_name)
    return Verb.ADMIN, lambda _: ""
