"""A checked request, on its way from the codec through batcher and engine to the response."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from services.contracts.kserve.tensors import Array

# A word of some letters is an object of some 60 bytes; its place in the array is counted there.
_STRING_BYTES = 64


class InferCall(NamedTuple):
    """One checked request; give fields by name.

    Attributes:
        inputs: an array for every input of the model, read-only views of the request's bytes; or
            `text` alone, of a model that has a tokenizer.
        sizes: the dynamic dimensions, equal in all inputs that share one.
        outputs: names of the wanted outputs, in the order asked for.
        request_id: chosen by the client, echoed.
        timeout_s: longest wait in the queue that the client allows; None for any.
        priority: 1 is the highest; 0 when the client names none.
        classes: how many of an output's largest values are wanted in its place, by its name.
        rooms: bytes that an output may have at most, by its name, where the request has a bound.
        num_tokens: that texts became; 0 of tensors.
    """

    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    outputs: tuple[str, ...]
    request_id: str = ""
    timeout_s: float | None = None
    priority: int = 0
    classes: Mapping[str, int] = MappingProxyType({})
    rooms: Mapping[str, int] = MappingProxyType({})
    num_tokens: int = 0


def held_bytes(inputs: Mapping[str, Array], message_bytes: int) -> int:
    """What a request holds while it waits: its arrays, or its message where that is larger.

    Arrays, of any shape, are larger that were sent as varints; views of a message are as large as
    it is.
    """
    num_bytes = num_strings = 0
    for array in inputs.values():
        num_bytes += array.nbytes
        if array.dtype.hasobject:
            num_strings += array.size
    return max(num_bytes, message_bytes) + _STRING_BYTES * num_strings
