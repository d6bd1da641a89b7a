"""`grpc.testing.TestService` of gRPC's interoperability tests: its messages and methods."""

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

PACKAGE: Final = "grpc.testing"
SERVICE: Final = f"{PACKAGE}.TestService"
_INT, _BYTES, _TEXT = (
    FieldDescriptorProto.TYPE_INT32,
    FieldDescriptorProto.TYPE_BYTES,
    FieldDescriptorProto.TYPE_STRING,
)
# Of each message the fields that the cases use: name, number, and type, which may be a message's.
_FIELDS: dict[str, list[tuple[str, int, Any]]] = {
    "Empty": [],
    "Payload": [("body", 2, _BYTES)],
    "EchoStatus": [("code", 1, _INT), ("message", 2, _TEXT)],
    "ResponseParameters": [("size", 1, _INT), ("interval_us", 2, _INT)],
    "SimpleRequest": [
        ("response_size", 2, _INT),
        ("payload", 3, "Payload"),
        ("response_status", 7, "EchoStatus"),
    ],
    "SimpleResponse": [("payload", 1, "Payload")],
    "StreamingInputCallRequest": [("payload", 1, "Payload")],
    "StreamingInputCallResponse": [("aggregated_payload_size", 1, _INT)],
    "StreamingOutputCallRequest": [
        ("response_parameters", 2, "ResponseParameters*"),
        ("payload", 3, "Payload"),
        ("response_status", 7, "EchoStatus"),
    ],
    "StreamingOutputCallResponse": [("payload", 1, "Payload")],
}


def _messages() -> dict[str, Any]:
    file = FileDescriptorProto(name="interop_test.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=1)
            if isinstance(kind, int):
                added.type = kind  # type: ignore[assignment] # an enumeration's number
            else:
                added.type = FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{PACKAGE}.{kind.rstrip('*')}"
                added.label = 3 if kind.endswith("*") else 1  # type: ignore[assignment]
    pool = DescriptorPool()
    pool.Add(file)  # type: ignore[attr-defined] # stubs lack it
    found = GetMessages([file], pool=pool)
    return {name.rpartition(".")[2]: found[name] for name in found}


MESSAGES: Final = _messages()
# Of each method: its request, its response, and whether either is a stream.
METHODS: Final[dict[str, tuple[str, str, bool, bool]]] = {
    "EmptyCall": ("Empty", "Empty", False, False),
    "UnaryCall": ("SimpleRequest", "SimpleResponse", False, False),
    "StreamingInputCall": (
        "StreamingInputCallRequest",
        "StreamingInputCallResponse",
        True,
        False,
    ),
    "StreamingOutputCall": (
        "StreamingOutputCallRequest",
        "StreamingOutputCallResponse",
        False,
        True,
    ),
    "FullDuplexCall": ("StreamingOutputCallRequest", "StreamingOutputCallResponse", True, True),
    "UnimplementedCall": ("Empty", "Empty", False, False),
}
ECHO_INITIAL: Final = "x-grpc-test-echo-initial"
ECHO_TRAILING: Final = "x-grpc-test-echo-trailing-bin"


def new(name: str, **fields: Any) -> Any:
    """A message."""
    return MESSAGES[name](**fields)


def payload(size: int) -> Any:
    """So many zeros."""
    return new("Payload", body=bytes(size))


class TestService:
    """The features that the cases want of a server."""

    __test__ = False

    async def empty_call(self, request: Any, context: Any) -> Any:
        """Answers nothing with nothing."""
        return new("Empty")

    async def unary_call(self, request: Any, context: Any) -> Any:
        """A payload of the size that is wanted, or the status."""
        await _echo_metadata(context)
        await _echo_status(request, context)
        return new("SimpleResponse", payload=payload(request.response_size))

    async def streaming_input_call(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """How many bytes came."""
        size = sum([len(request.payload.body) async for request in requests])
        return new("StreamingInputCallResponse", aggregated_payload_size=size)

    async def streaming_output_call(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Payloads of the sizes that are wanted."""
        for each in request.response_parameters:
            yield new("StreamingOutputCallResponse", payload=payload(each.size))

    async def full_duplex_call(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """The same for each request of a stream."""
        await _echo_metadata(context)
        async for request in requests:
            await _echo_status(request, context)
            for each in request.response_parameters:
                yield new("StreamingOutputCallResponse", payload=payload(each.size))

    def unimplemented_call(self, request: Any, context: Any) -> Any:
        """What generated code does for a method that a servicer does not override."""
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        context.set_details("Method not implemented!")
        raise NotImplementedError("Method not implemented!")

    def handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """The service, as a server takes it."""
        behaviours = (
            self.empty_call,
            self.unary_call,
            self.streaming_input_call,
            self.streaming_output_call,
            self.full_duplex_call,
            self.unimplemented_call,
        )
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: _factory_of(method)(
                    behaviour,
                    request_deserializer=MESSAGES[method[0]].FromString,
                    response_serializer=MESSAGES[method[1]].SerializeToString,
                )
                for (name, method), behaviour in zip(METHODS.items(), behaviours, strict=True)
            },
        )


def stub(channel: Any, name: str, service: str = SERVICE) -> Any:
    """What a client calls a method with."""
    request, response, is_client_stream, is_server_stream = METHODS[name]
    shape = f"{_shape(is_client_stream)}_{_shape(is_server_stream)}"
    return getattr(channel, shape)(
        f"/{service}/{name}",
        request_serializer=MESSAGES[request].SerializeToString,
        response_deserializer=MESSAGES[response].FromString,
    )


def _shape(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _factory_of(method: tuple[str, str, bool, bool]) -> Any:
    return getattr(grpc, f"{_shape(method[2])}_{_shape(method[3])}_rpc_method_handler")


async def _echo_metadata(context: Any) -> None:
    found = dict(context.invocation_metadata())
    if ECHO_TRAILING in found:
        context.set_trailing_metadata(((ECHO_TRAILING, found[ECHO_TRAILING]),))
    if ECHO_INITIAL in found:
        await context.send_initial_metadata(((ECHO_INITIAL, found[ECHO_INITIAL]),))


async def _echo_status(request: Any, context: Any) -> None:
    if request.HasField("response_status"):
        wanted = request.response_status
        (code,) = (each for each in grpc.StatusCode if each.value[0] == wanted.code)
        await context.abort(code, wanted.message)
