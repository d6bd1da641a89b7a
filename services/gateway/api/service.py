"""The inference service as its proto file describes it: its RPCs and their messages."""

from typing import Any, Final

from services.pb import open_inference_v2_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def request_class(rpc: str) -> type[Any]:
    """The message that an RPC is called with."""
    found: type[Any] = getattr(pb, SERVICE.methods_by_name[rpc].input_type.name)
    return found


def response_class(rpc: str) -> type[Any]:
    """The message that an RPC answers with."""
    found: type[Any] = getattr(pb, SERVICE.methods_by_name[rpc].output_type.name)
    return found
