"""Puts the gate before RPC handlers: it authenticates and authorizes the caller."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc

from services.contracts.errors import SmeltError
from services.gateway.access.caller import CALLER_NAME, Caller
from services.gateway.access.gate import Gate, Metadata
from services.gateway.access.verbs import Verb
from services.gateway.api.service import SERVICE
from services.gateway.api.status_codes import StatusTable
from services.gateway.api.streaming import Incoming
from services.gateway.pipeline.inference import INFERENCE_METHODS, InferenceCall, RequestOutcome
from services.gateway.pipeline.request_head import request_head_from_bytes
from services.grpc_server.calls.context import Context
from services.grpc_server.server_options import Check
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]

Behaviour = Callable[[Any, Context], Awaitable[Any]]
OnRejected = Callable[[InferenceCall, RequestOutcome], None]
Stream = Callable[[AsyncIterator[Any], Context], AsyncIterator[bytes]]

# Load balancers and clients call these before they have a token; they show no secret.
OPEN_METHODS: Final = frozenset({"ServerLive", "ServerReady", "ServerMetadata"})
_GUARDED: Final = f"/{SERVICE.full_name}/"
# About one model, for callers with any verb on it.
_QUESTIONS: Final = frozenset({"ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"})
# Has for each caller the models of which it may ask.
_INDEX: Final = "RepositoryIndex"


def guarded(
    handlers: "Mapping[str, Handler]", gate: Gate, statuses: StatusTable, on_rejected: OnRejected
) -> "dict[str, Handler]":
    """The same handlers, each behind the gate; what is not known here is for admins.

    Args:
        handlers: by the names of their RPCs.
        gate: identifies the caller.
        statuses: of errors.
        on_rejected: called for each request for a model that is refused here.
    """
    return {
        name: handler
        if name in OPEN_METHODS
        else _guarded(name, handler, gate, statuses, on_rejected)
        for name, handler in handlers.items()
    }


def early_check(gate: Gate, statuses: StatusTable) -> Check:
    """Refuses callers without a valid token, before the rest of a large request comes.

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
    on_rejected: OnRejected,
) -> "Handler":
    # The types are those of a blocking server's handlers.
    behaviour: Behaviour | None = handler.unary_unary  # type: ignore[assignment]
    if behaviour is None:
        return _guarded_stream(handler, gate, statuses, on_rejected)
    verb, model_of = _need(name)

    async def checked(request: Any, context: Context) -> Any:
        began_s = time.monotonic()
        try:
            caller = await gate.caller_of(context.invocation_metadata() or ())
            CALLER_NAME.set(caller.name)
            if isinstance(request, SmeltError):
                raise request  # its bytes are no message; see `handlers`
            if name != _INDEX:
                caller.require(verb, model_of(request))
        except Exception as error:
            refusal = statuses.refusal_of(error)
            if name in INFERENCE_METHODS:
                on_rejected(
                    _call(name, context), RequestOutcome(refusal.code, time.monotonic() - began_s)
                )
            await context.abort(refusal.code, refusal.details, refusal.trailing)
        answer = await behaviour(request, context)
        return _visible(answer, caller) if name == _INDEX else answer

    return grpc.unary_unary_rpc_method_handler(
        checked,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _guarded_stream(
    handler: "Handler",
    gate: Gate,
    statuses: StatusTable,
    on_rejected: OnRejected,
) -> "Handler":
    """ModelStreamInfer: each request of the stream is authorized on its own."""
    behaviour: Stream = handler.stream_stream  # type: ignore[assignment]

    async def checked(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        call = _call("ModelStreamInfer", context)
        began_s = time.monotonic()

        def on_error(error: Exception) -> None:
            on_rejected(call, RequestOutcome(statuses.code_of(error), time.monotonic() - began_s))

        metadata = tuple(call.metadata)
        try:
            CALLER_NAME.set((await gate.caller_of(metadata)).name)
        except Exception as error:
            refusal = statuses.refusal_of(error)
            on_error(error)
            await context.abort(refusal.code, refusal.details, refusal.trailing)

        async for answer in behaviour(_permitted(requests, gate, metadata, on_error), context):
            yield answer
            del answer

    return grpc.stream_stream_rpc_method_handler(checked)


def _call(name: str, context: Context) -> InferenceCall:
    """A request as far as it is known here."""
    return InferenceCall(
        b"", rpc=name, peer=context.peer(), metadata=context.invocation_metadata() or ()
    )


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
            # Whatever it is: one request fails, with its reason, as any other.
            on_error(error)
            yield error
        else:
            yield body
        # A stream that idles holds nothing of what was asked before.
        del body


def _visible(index: pb.RepositoryIndexResponse, caller: Caller) -> pb.RepositoryIndexResponse:
    """What a caller sees of all models; reasons may name others, and are for admins."""
    visible = pb.RepositoryIndexResponse(
        models=(each for each in index.models if caller.may(None, each.name))
    )
    if not caller.may(Verb.ADMIN, ""):
        for each in visible.models:
            each.ClearField("reason")
    return visible


def _need(name: str) -> tuple[Verb | None, Callable[[Any], str]]:
    """The verb that a method needs, and the field of its request that names the model."""
    if name == "ModelInfer":
        return Verb.INFER, lambda body: request_head_from_bytes(body).model_name
    if name in _QUESTIONS:
        return None, lambda request: str(request.name)
    if name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        return Verb.LOAD, lambda request: str(request.model_name)
    return Verb.ADMIN, lambda _: ""
