"""Server reflection: what tools like grpcurl ask a server for instead of its .proto files.

gRPC's library for Python has it as `v1alpha` alone. Newer tools ask for `v1` first, whose messages
are the same on the wire, so one servicer answers to both names.
"""

from collections.abc import Sequence
from typing import Final

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from services.gateway.http2.server import GrpcServer

_NEW_NAME: Final = "grpc.reflection.v1.ServerReflection"
_OLD_PACKAGE, _NEW_PACKAGE = "grpc.reflection.v1alpha", "grpc.reflection.v1"


def enable_reflection(server: GrpcServer, pool: DescriptorPool, services: Sequence[str]) -> None:
    """Describe these services, health and reflection itself from a pool that holds the first."""
    for serialized in (
        health_pb2.DESCRIPTOR.serialized_pb,
        reflection_pb2.DESCRIPTOR.serialized_pb,
        _as_v1(reflection_pb2.DESCRIPTOR.serialized_pb),
    ):
        pool.AddSerializedFile(serialized)
    names = (*services, reflection.SERVICE_NAME, _NEW_NAME)
    # gRPC's own function to do this knows gRPC's servers alone.
    handler = grpc.stream_stream_rpc_method_handler(
        ReflectionServicer(service_names=names, pool=pool).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, _NEW_NAME):
        server.add_registered_method_handlers(name, {"ServerReflectionInfo": handler})


def _as_v1(serialized: bytes) -> bytes:
    """The file of `v1alpha` under the names of `v1`."""
    file = FileDescriptorProto.FromString(serialized)
    file.package = _NEW_PACKAGE
    file.name = file.name.replace("v1alpha", "v1")
    for field in (field for message in file.message_type for field in message.field):
        if field.type_name:
            field.type_name = _renamed(field.type_name)
    for method in (method for service in file.service for method in service.method):
        method.input_type = _renamed(method.input_type)
        method.output_type = _renamed(method.output_type)
    return file.SerializeToString()


def _renamed(type_name: str) -> str:
    return type_name.replace(f".{_OLD_PACKAGE}.", f".{_NEW_PACKAGE}.")
