"""Which outputs a request asks for, and in which form."""

from collections.abc import Sequence

from services.contracts.errors import InvalidRequestError
from services.pb import open_inference_v2_pb2 as pb
from services.replica.request.classification import num_classes_from_parameters
from services.replica.request.parameters import OUTPUT_ROOM, check_tensor_parameters
from services.replica.request.signature import Signature

_Requested = pb.ModelInferRequest.InferRequestedOutputTensor


def requested_outputs(requested: Sequence[_Requested], signature: Signature) -> tuple[str, ...]:
    """Names of the outputs that are asked for, in that order; all of them when none is.

    Raises:
        InvalidRequestError: no such output, or one twice.
        UnsupportedFeatureError: a parameter of it that is not offered.
    """
    if not requested:
        return tuple(signature.outputs)
    names = tuple(output.name for output in requested)
    for output in requested:
        check_tensor_parameters(output.parameters, output.name, signature.name)
        if output.name not in signature.outputs:
            raise InvalidRequestError(
                f"unexpected inference output '{output.name}' for model '{signature.name}'; "
                f"expected some of {list(signature.outputs)}"
            )
    if len(set(names)) != len(names):
        raise InvalidRequestError(
            f"an output is requested more than once for model '{signature.name}': expected "
            f"different names, got {list(names)}"
        )
    return names


def wanted_classes(requested: Sequence[_Requested], signature: Signature) -> dict[str, int]:
    """How many classes each output is to be turned into; raises InvalidRequestError."""
    num_classes = {
        output.name: num_classes_from_parameters(
            output.parameters, signature.outputs[output.name], signature.name
        )
        for output in requested
    }
    return {name: num for name, num in num_classes.items() if num}


def output_rooms(requested: Sequence[_Requested]) -> dict[str, int]:
    """Bytes that outputs may have which a gateway puts into shared memory, by their names."""
    return {
        output.name: output.parameters[OUTPUT_ROOM].int64_param
        for output in requested
        if OUTPUT_ROOM in output.parameters
    }
