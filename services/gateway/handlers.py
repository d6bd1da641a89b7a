"""gRPC's side of every RPC of the inference service: messages in, messages or statuses out."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from google.protobuf.message import Message

from services.contracts.errors import UnsupportedFeatureError
from services.gateway.inference import InferenceCall, Station
from services.gateway.servicer import QuestionServicer
from services.gateway.status_codes import StatusTable
from services.gateway.streaming import Incoming, InferenceStreams
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    # gRPC's classes are generic for type checkers alone.
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    GenericHandler = grpc.GenericRpcHandler[Any, Any]

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
Question = Callable[[Any], Awaitable[Message]]


def offered_handlers(
    inference: Station, questions: QuestionServicer, statuses: StatusTable
) -> "dict[str, Handler]":
    """A handler for each RPC that is offered, by its name."""
    handlers: dict[str, Handler] = {
        "ModelInfer": _forwarding_handler(inference, statuses),
        "ModelStreamInfer": _streaming_handler(inference, statuses),
    }
    for name, question in _questions(questions).items():
        handlers[name] = _question_handler(name, question, statuses)
    return handlers


def service_handler(handlers: "Mapping[str, Handler]", statuses: StatusTable) -> "GenericHandler":
    """The whole service; RPCs without a handler answer that they are not offered."""
    offered = ", ".join(sorted(handlers))
    absent = {
        method.name: _absent_handler(method.name, offered, statuses)
        for method in SERVICE.methods
        if method.name not in handlers
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, absent | dict(handlers))


def _questions(servicer: QuestionServicer) -> Mapping[str, Question]:
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


def _forwarding_handler(inference: Station, statuses: StatusTable) -> "Handler":
    """ModelInfer, with neither side's message parsed: bytes in, bytes out."""

    async def model_infer(body: bytes, context: "Context") -> bytes:
        call = InferenceCall(body=body, deadline_s=_deadline_s(context.time_remaining()))
        try:
            return await inference.answer(call)
        except Exception as error:
            await _refuse(context, statuses, error)

    return grpc.unary_unary_rpc_method_handler(model_infer)


def _streaming_handler(inference: Station, statuses: StatusTable) -> "Handler":
    """ModelStreamInfer, with no message parsed either."""

    def answer(body: bytes, deadline_s: float | None) -> Awaitable[bytes]:
        return inference.answer(InferenceCall(body=body, deadline_s=deadline_s))

    streams = InferenceStreams(answer, statuses)

    # gRPC takes only a generator function for one that streams.
    async def model_stream_infer(
        requests: AsyncIterator[Incoming], context: "Context"
    ) -> AsyncIterator[bytes]:
        deadline_s = _deadline_s(context.time_remaining())
        async for message in streams.serve(requests, deadline_s, context):
            yield message

    return grpc.stream_stream_rpc_method_handler(model_stream_infer)


def _question_handler(name: str, question: Question, statuses: StatusTable) -> "Handler":
    async def ask(request: Message, context: "Context") -> Message:
        try:
            return await question(request)
        except Exception as error:
            await _refuse(context, statuses, error)

    return grpc.unary_unary_rpc_method_handler(
        ask,
        request_deserializer=_message_class(
            SERVICE.methods_by_name[name].input_type.name
        ).FromString,
        response_serializer=_message_class(
            SERVICE.methods_by_name[name].output_type.name
        ).SerializeToString,
    )


def _absent_handler(name: str, offered: str, statuses: StatusTable) -> "Handler":
    error = UnsupportedFeatureError(f"{name} is not offered by this server; it offers {offered}")

    async def refuse(_: bytes | AsyncIterator[bytes], context: "Context") -> bytes:
        await _refuse(context, statuses, error)

    if SERVICE.methods_by_name[name].client_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


def _deadline_s(remaining_s: float | None) -> float | None:
    return None if remaining_s is None else time.monotonic() + remaining_s


async def _refuse(context: "Context", statuses: StatusTable, error: Exception) -> NoReturn:
    refusal = statuses.refusal_of(error)
    await context.abort(refusal.code, refusal.details, refusal.trailing)


def _message_class(name: str) -> type[Message]:
    message_class: type[Message] = getattr(pb, name)
    return message_class
