"""The no-op model as a Ray Serve deployment's class, and how Serve's proxy comes to it."""

from typing import Any

import grpc

from services.pb import open_inference_v2_pb2 as pb
from tests.benchmarks.dataplane.payloads import response_of

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


class Noop:
    """Answers ModelInfer; Serve's proxy calls the method of the RPC's name."""

    async def ModelInfer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:  # noqa: N802
        """The first values of the tensor."""
        return response_of(request)


def add_infer(servicer: Any, server: Any) -> None:
    """Register the RPC, as a generated function of all RPCs would."""
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.ModelInfer,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=pb.ModelInferResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(_SERVICE.full_name, {"ModelInfer": handler})
    server.add_generic_rpc_handlers((handlers,))
