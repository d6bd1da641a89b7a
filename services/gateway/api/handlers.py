"""gRPC's side of every RPC of the inference service: messages in, messages or statuses out."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError, Message

from services.contracts.errors import InvalidRequestError, UnsupportedFeatureError
from services.contracts.transport.frames import Payload
from services.gateway.access.gate import Metadata
from services.gateway.api.disabled_rpcs import disabled_reason, disabled_reasons
from services.gateway.api.metadata import MetadataServicer
from services.gateway.api.service import SERVICE, request_class, response_class
from services.gateway.api.status_codes import StatusTable
from services.gateway.api.streaming import FRAME_BYTES, Incoming, InferenceStreams
from services.gateway.pipeline.admission import Bound
from services.gateway.pipeline.inference import InferenceCall, InferenceHandler
from services.gateway.routing.sessions import session_number
from services.grpc_server.calls.context import Context

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Handler = grpc.RpcMethodHandler[Any, Any]
    GenericHandler = grpc.GenericRpcHandler[Any, Any]

UnaryMethod = Callable[[Any], Awaitable[Message]]
# Such requests are names; what a parser makes of bytes can be fifty times their size.
_MAX_UNARY_REQUEST_BYTES: Final = 1 << 20
# A gateway under overload is live all the same.
_PROBES: Final = frozenset(("ServerLive", "ServerReady"))
_NOTHING_IS_ON: Final = disabled_reasons()


def offered_handlers(
    inference: InferenceHandler,
    metadata: MetadataServicer,
    statuses: StatusTable,
    switched_on: Mapping[str, UnaryMethod] = MappingProxyType({}),
    *,
    session_key: str = "",
    bound: Bound | None = None,
    has_parts: Callable[[Payload], bool] = lambda _: False,
) -> "dict[str, Handler]":
    """A handler for each RPC that is offered, by its name; some are off unless asked for.

    Args:
        inference: answers requests.
        metadata: answers all others that are always on.
        statuses: of errors.
        switched_on: RPCs beyond those of `metadata`.
        session_key: names the metadata that names a session; "" for none.
        bound: of requests under way that are not inference, without probes; None is none.
        has_parts: whether a request of a stream may have several answers.
    """
    handlers: dict[str, Handler] = {
        "ModelInfer": _forwarding_handler(inference, statuses, session_key),
        "ModelStreamInfer": _streaming_handler(inference, statuses, session_key, has_parts),
    }
    for name, method in {**_methods(metadata), **switched_on}.items():
        if bound is not None and name not in _PROBES:
            method = _admitted(method, bound)  # noqa: PLW2901
        handlers[name] = _unary_handler(name, method, statuses)
    return handlers


def _admitted(method: UnaryMethod, bound: Bound) -> UnaryMethod:
    async def ask(request: Any) -> Message:
        bound.enter()
        try:
            return await method(request)
        finally:
            bound.leave()

    return ask


def service_handler(
    handlers: "Mapping[str, Handler]",
    statuses: StatusTable,
    reasons: Mapping[str, str] = _NOTHING_IS_ON,
) -> "GenericHandler":
    """The whole service; RPCs without a handler answer UNIMPLEMENTED, with the reason.

    Args:
        handlers: by method name.
        statuses: status of each error class.
        reasons: how to switch on what is off, by method name; see `disabled_rpcs`.
    """
    absent = {
        method.name: _disabled_handler(method.name, statuses, disabled_reason(method.name, reasons))
        for method in SERVICE.methods
        if method.name not in handlers
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, absent | dict(handlers))


def _methods(servicer: MetadataServicer) -> Mapping[str, UnaryMethod]:
    return {
        "ServerLive": servicer.server_live,
        "ServerReady": servicer.server_ready,
        "ServerMetadata": servicer.server_metadata,
        "ModelReady": servicer.model_ready,
        "ModelMetadata": servicer.model_metadata,
        "ModelConfig": servicer.model_config,
        "ModelStatistics": servicer.model_statistics,
        "RepositoryIndex": servicer.repository_index,
    }


def _forwarding_handler(
    inference: InferenceHandler, statuses: StatusTable, session_key: str
) -> "Handler":
    """ModelInfer, with neither side's message parsed: bytes in, bytes out."""

    async def model_infer(body: Payload, context: Context) -> Payload:
        metadata = context.invocation_metadata() or ()
        call = InferenceCall(
            body=body,
            peer=context.peer(),
            metadata=metadata,
            deadline_s=_deadline_s(context.time_remaining()),
            session=_session(metadata, session_key),
            # Of HTTP's paths that cut a request; gRPC has none.
            parts=getattr(context, "parts", None),
        )
        try:
            return await inference.answer(call)
        except Exception as error:
            await refuse(context, statuses, error)

    return grpc.unary_unary_rpc_method_handler(model_infer)


def _streaming_handler(
    inference: InferenceHandler,
    statuses: StatusTable,
    session_key: str,
    has_parts: Callable[[Payload], bool],
) -> "Handler":
    """ModelStreamInfer, with no message parsed either."""

    # gRPC takes only a generator function for one that streams.
    async def model_stream_infer(
        requests: AsyncIterator[Incoming], context: Context
    ) -> AsyncIterator[bytes]:
        metadata = context.invocation_metadata() or ()
        session = _session(metadata, session_key)
        deadline_s = _deadline_s(context.time_remaining())
        peer = context.peer()

        def answer(body: Payload, deadline_s: float | None) -> Awaitable[Payload]:
            call = InferenceCall(
                body=body,
                rpc="ModelStreamInfer",
                peer=peer,
                metadata=metadata,
                deadline_s=deadline_s,
                session=session,
                frame_bytes=FRAME_BYTES,
            )
            return inference.answer(call)

        streams = InferenceStreams(answer, statuses, has_parts)
        async for message in streams.serve(requests, deadline_s, context):
            yield message
            # While the client is waited for, this answer must not be referenced.
            del message

    return grpc.stream_stream_rpc_method_handler(model_stream_infer)


def _unary_handler(name: str, method: UnaryMethod, statuses: StatusTable) -> "Handler":
    async def ask(request: Message | InvalidRequestError, context: Context) -> Message:
        try:
            if isinstance(request, InvalidRequestError):
                raise request
            return await method(request)
        except Exception as error:
            await refuse(context, statuses, error)

    return grpc.unary_unary_rpc_method_handler(
        ask,
        request_deserializer=_request_parser(request_class(name)),
        response_serializer=response_class(name).SerializeToString,
    )


def _request_parser(
    message_class: type[Message],
) -> "Callable[[bytes], Message | InvalidRequestError]":
    """Parses a message, or raises with the reason: gRPC has no status for what raises here."""

    def parse(body: bytes) -> Message | InvalidRequestError:
        name = message_class.DESCRIPTOR.full_name
        if len(body) > _MAX_UNARY_REQUEST_BYTES:
            return InvalidRequestError(
                f"{name} of {len(body)} bytes: expected at most {_MAX_UNARY_REQUEST_BYTES}"
            )
        try:
            return message_class.FromString(body)
        except DecodeError as error:
            return InvalidRequestError(f"the message is not an {name}: {error}")

    return parse


def _disabled_handler(name: str, statuses: StatusTable, why: str) -> "Handler":
    error = UnsupportedFeatureError(f"{name} is not offered by this server: {why}")

    async def absent(_: bytes | AsyncIterator[bytes], context: Context) -> bytes:
        await refuse(context, statuses, error)

    if SERVICE.methods_by_name[name].client_streaming:
        return grpc.stream_stream_rpc_method_handler(absent)
    return grpc.unary_unary_rpc_method_handler(absent)


def _session(metadata: Metadata, key: str) -> int:
    """The client's session, 0 without one."""
    if key:
        for name, value in metadata:
            if name == key:
                return session_number(value)
    return 0


def _deadline_s(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else time.monotonic() + remaining_s


async def refuse(context: Context, statuses: StatusTable, error: Exception) -> NoReturn:
    """End a call with the status of an error.

    Args:
        context: of the call.
        statuses: status of each error class.
        error: of any class; one that is not Smelt's is INTERNAL.
    """
    refusal = statuses.refusal_of(error)
    await context.abort(refusal.code, refusal.details, refusal.trailing)
