"""Server reflection: what tools like grpcurl ask a server for instead of its .proto files.

gRPC's library for Python has it as `v1alpha` alone. Newer tools ask for `v1` first, whose messages
are the same on the wire, so one handler answers to both names.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as messages

from services.gateway.pipeline.admission import Bound
from services.grpc_server.aio_server import AioServer
from services.grpc_server.server import GrpcServer

_PACKAGES: Final = ("grpc.reflection.v1alpha", "grpc.reflection.v1")
# Streams at once, over all clients: an answer is a hundred times its question, and waits for as
# long as its client does not read it.
_MAX_STREAMS: Final = 64


def enable_reflection(
    server: GrpcServer | AioServer,
    pool: DescriptorPool,
    services: Sequence[str],
    refuse: Callable[[Any, Exception], Any],
) -> None:
    """Describe these services, health and reflection itself.

    Args:
        server: whose services they are.
        pool: holds their files.
        services: their names.
        refuse: ends a call, by its context, for an error.
    """
    for serialized in (
        health_pb2.DESCRIPTOR.serialized_pb,
        messages.DESCRIPTOR.serialized_pb,
        _as_v1(messages.DESCRIPTOR.serialized_pb),
    ):
        pool.AddSerializedFile(serialized)
    own = [f"{package}.ServerReflection" for package in _PACKAGES]
    reflection = _Reflection(sorted((*services, *own)), pool, refuse)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.info,
        request_deserializer=messages.ServerReflectionRequest.FromString,
        response_serializer=messages.ServerReflectionResponse.SerializeToString,
    )
    for name in own:
        server.add_registered_method_handlers(name, {"ServerReflectionInfo": handler})


class _Reflection:
    """Answers from a pool."""

    def __init__(
        self, services: Sequence[str], pool: DescriptorPool, refuse: Callable[[Any, Exception], Any]
    ) -> None:
        self._services = services
        self._pool = pool
        self._refuse = refuse
        self._bound = Bound(_MAX_STREAMS, "reflection", "the number of gateways")
        # By the file that was asked for: there are as many as the pool has.
        self._files: dict[str, messages.FileDescriptorResponse] = {}

    async def info(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[messages.ServerReflectionResponse]:
        """ServerReflectionInfo."""
        try:
            self._bound.enter()
        except Exception as error:
            await self._refuse(context, error)
        try:
            async for request in requests:
                yield self._answer(request)
        finally:
            self._bound.leave()

    def _answer(self, request: Any) -> messages.ServerReflectionResponse:
        answer = messages.ServerReflectionResponse(original_request=request)
        try:
            self._fill(answer, request)
        except KeyError:
            answer.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
            answer.error_response.error_message = "not found"
        return answer

    def _fill(self, answer: Any, request: Any) -> None:
        """Answer one question; raises KeyError for what is not there."""
        pool = self._pool
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            answer.list_services_response.service.extend(
                messages.ServiceResponse(name=name) for name in self._services
            )
        elif kind == "file_by_filename":
            file = pool.FindFileByName(request.file_by_filename)
            answer.file_descriptor_response.CopyFrom(self._response(file))
        elif kind == "file_containing_symbol":
            file = self._file_of(request.file_containing_symbol)
            answer.file_descriptor_response.CopyFrom(self._response(file))
        elif kind == "file_containing_extension":
            asked = request.file_containing_extension
            extended = pool.FindMessageTypeByName(asked.containing_type)
            found = pool.FindExtensionByNumber(extended, asked.extension_number)
            file = pool.FindFileContainingSymbol(found.full_name)
            answer.file_descriptor_response.CopyFrom(self._response(file))
        elif kind == "all_extension_numbers_of_type":
            extended = pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
            numbers = sorted(each.number for each in pool.FindAllExtensions(extended))
            answer.all_extension_numbers_response.base_type_name = extended.full_name
            answer.all_extension_numbers_response.extension_number.extend(numbers)

    def _file_of(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            # The pool knows no methods: the last name is one of a service's.
            service, _, method = symbol.rpartition(".")
            found = self._pool.FindServiceByName(service).methods_by_name[method]
            return found.containing_service.file

    def _response(self, file: FileDescriptor) -> messages.FileDescriptorResponse:
        """A file and all that it imports."""
        if file.name not in self._files:
            found: dict[str, bytes] = {}
            _collect(file, found)
            self._files[file.name] = messages.FileDescriptorResponse(
                file_descriptor_proto=list(found.values())
            )
        return self._files[file.name]


def _collect(file: FileDescriptor, found: dict[str, bytes]) -> None:
    if file.name not in found:
        found[file.name] = file.serialized_pb
        for each in file.dependencies:
            _collect(each, found)


def _as_v1(serialized: bytes) -> bytes:
    """The file of `v1alpha` under the names of `v1`."""
    file = FileDescriptorProto.FromString(serialized)
    file.package = _PACKAGES[1]
    file.name = file.name.replace("v1alpha", "v1")
    for field in (field for message in file.message_type for field in message.field):
        if field.type_name:
            field.type_name = _renamed(field.type_name)
    for method in (method for service in file.service for method in service.method):
        method.input_type = _renamed(method.input_type)
        method.output_type = _renamed(method.output_type)
    return file.SerializeToString()


def _renamed(type_name: str) -> str:
    return type_name.replace(f".{_PACKAGES[0]}.", f".{_PACKAGES[1]}.")
