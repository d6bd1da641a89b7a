"""Request parameters: which are obeyed, which are ignored and which are refused."""

from collections.abc import Mapping

from services.contracts.errors import InvalidRequestError, UnsupportedFeatureError
from services.pb import open_inference_v2_pb2 as pb

_MICROSECONDS = 1e-6
_RESERVED_PREFIX = "triton_"
# Clients set it on streams; the only answer of a request is its final one anyway.
_ALLOWED_RESERVED = "triton_enable_empty_final_response"
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
# Names of Triton's HTTP front and of its own use, which no request may carry as its own.
_RESERVED = ("headers", "binary_data_output")
# What the gateway leaves of an output's place in shared memory: the bytes that it may have.
OUTPUT_ROOM = "shared_memory_byte_size"
_SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset")
Parameters = Mapping[str, pb.InferParameter]


def timeout_s_from_parameters(parameters: Parameters, model: str) -> float | None:
    """Check a request's parameters; returns the longest wait it allows in the queue.

    Raises:
        UnsupportedFeatureError: the request is part of a sequence.
        InvalidRequestError: a reserved name is used or a known one has a wrong type.
    """
    if not parameters:
        return None
    for name in _SEQUENCE:
        if name in parameters:
            raise UnsupportedFeatureError(
                f"parameter '{name}' for model '{model}': sequence batching is not offered; "
                "send each request on its own"
            )
    for name in parameters:
        is_reserved = name in _RESERVED or name.startswith(_RESERVED_PREFIX)
        if is_reserved and name != _ALLOWED_RESERVED:
            raise InvalidRequestError(f"parameter '{name}' for model '{model}': name is reserved")
    timeout_us = _unsigned(parameters, "timeout", model) if "timeout" in parameters else 0
    return timeout_us * _MICROSECONDS or None


def priority_from_parameters(parameters: Parameters, model: str) -> int:
    """The priority that a request asks for, 1 being the highest; 0 when it names none.

    Raises:
        InvalidRequestError: it has a wrong type.
    """
    return _unsigned(parameters, "priority", model) if "priority" in parameters else 0


def check_tensor_parameters(parameters: Parameters, tensor: str, model: str) -> None:
    """Refuse parameters that a tensor cannot have here.

    Args:
        parameters: of an input or a requested output.
        tensor: its name, for the message.
        model: its name, for the message.

    Raises:
        UnsupportedFeatureError: shared memory, which the gateway would have resolved.
    """
    if not parameters:
        return
    for name in _SHARED_MEMORY:
        if name in parameters:
            raise UnsupportedFeatureError(
                f"parameter '{name}' of tensor '{tensor}' for model '{model}': shared memory is "
                "not offered; send inputs and read outputs as raw contents, or switch it on with "
                "SMELT_GATEWAY_SHARED_MEMORY=true"
            )


def _unsigned(parameters: Parameters, name: str, model: str) -> int:
    parameter = parameters[name]
    kind = parameter.WhichOneof("parameter_choice")
    if kind == "int64_param" and parameter.int64_param >= 0:
        return parameter.int64_param
    if kind == "uint64_param":
        return parameter.uint64_param
    raise InvalidRequestError(
        f"parameter '{name}' for model '{model}': expected int64_param >= 0 or uint64_param, "
        f"got {kind}"
    )
