"""How much memory a request may need, checked on its bytes before a parser allocates anything.

A parsed message can take fifty times the bytes that came: two bytes make an empty tensor of
a hundred. So all that comes in numbers is counted first, by walking over it. The limits are
far above what models have; each refusal says what, found and wanted.
"""

from collections import Counter
from math import prod
from typing import Final

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.protobuf_wire import (
    MAX_FIELDS,
    VARINT,
    Field,
    fields_of,
    numbers_of,
)

MAX_NAME_BYTES: Final = 1024
MAX_TENSORS: Final = 1024
MAX_PARAMETERS: Final = 256
# As many as numpy 1 knows; exported models have five or six.
MAX_DIMS: Final = 32
# No message holds more, whatever their type.
MAX_ELEMENTS: Final = 2**31 - 1
# Each of their elements becomes an object on the way; raw contents have no such limit.
MAX_TYPED_BYTES: Final = 64 << 20

# Tags of the fields of ModelInferRequest and its parts, all length-delimited.
_MODEL, _VERSION, _PARAMETERS, _INPUTS, _OUTPUTS = (n << 3 | 2 for n in (1, 2, 4, 5, 6))
_NAME, _DATATYPE, _SHAPE, _TENSOR_PARAMETERS, _CONTENTS = (n << 3 | 2 for n in range(1, 6))
_OUTPUT_PARAMETERS = 2 << 3 | 2
_KEY = _NAME
# Of a shape that is not packed.
_SHAPE_DIM = 3 << 3 | VARINT
_LARGEST_DIM = 2**63 - 1


def check_name(what: str, num_bytes: int) -> None:
    """Refuse a name that is too long.

    Raises:
        InvalidRequestError: it is.
    """
    _check(what, num_bytes, MAX_NAME_BYTES, "bytes")


def check_output_room(name: str, num_bytes: int, room_bytes: int) -> None:
    """Refuse an output that its shared memory cannot hold.

    Args:
        name: of the output.
        num_bytes: that it has.
        room_bytes: that the request names for it.

    Raises:
        InvalidRequestError: it has more.
    """
    if num_bytes > room_bytes:
        raise InvalidRequestError(
            f"shared memory size specified with the request for output '{name}' ({room_bytes} "
            f"bytes) should be at least {num_bytes} bytes to hold the results"
        )


def check_request_head(head: bytes) -> None:
    """Refuse a ModelInferRequest without its raw contents that needs too much memory.

    Raises:
        InvalidRequestError: too many fields, tensors, parameters, dimensions or elements; a
            name or typed contents too long; or the bytes are no message.
    """
    _Walk(head).request()


class _Walk:
    """One pass over a head; what it counts is refused as soon as it is too much."""

    def __init__(self, head: bytes) -> None:
        self._head = memoryview(head)
        self._num_fields = 0
        self._num_typed_bytes = 0

    def request(self) -> None:
        """Check the whole message."""
        seen: Counter[int] = Counter()
        for field in self._fields(0, len(self._head)):
            tag, _, begin, end = field
            seen[tag] += 1
            if tag == _MODEL:
                check_name("the model's name", end - begin)
            elif tag == _VERSION:
                check_name("the model's version", end - begin)
            elif tag == _PARAMETERS:
                self._counted_parameter("the request", seen[tag], field)
            elif tag == _INPUTS:
                _check("the request", seen[tag], MAX_TENSORS, "inputs")
                self._input(f"input {seen[tag] - 1}", field)
            elif tag == _OUTPUTS:
                _check("the request", seen[tag], MAX_TENSORS, "requested outputs")
                self._output(f"requested output {seen[tag] - 1}", field)

    def _fields(self, begin: int, end: int) -> list[Field]:
        found = fields_of(self._head, begin, end)
        self._num_fields += len(found)
        _check("the request", self._num_fields, MAX_FIELDS, "fields")
        return found

    def _input(self, where: str, tensor: Field) -> None:
        dims: list[int] = []
        num_parameters = 0
        for field in self._fields(*tensor[2:]):
            tag, _, begin, end = field
            if tag in (_SHAPE, _SHAPE_DIM):
                dims += numbers_of(self._head, field, MAX_DIMS + 1)
                _check(where, len(dims), MAX_DIMS, "dimensions")
            elif tag in (_NAME, _DATATYPE):
                check_name(f"{where}, its name or datatype", end - begin)
            elif tag == _TENSOR_PARAMETERS:
                num_parameters += 1
                self._counted_parameter(where, num_parameters, field)
            elif tag == _CONTENTS:
                self._contents(where, begin, end)
        _check_elements(where, dims)

    def _output(self, where: str, output: Field) -> None:
        num_parameters = 0
        for field in self._fields(*output[2:]):
            tag, _, begin, end = field
            if tag == _NAME:
                check_name(f"{where}, its name", end - begin)
            elif tag == _OUTPUT_PARAMETERS:
                num_parameters += 1
                self._counted_parameter(where, num_parameters, field)

    def _counted_parameter(self, where: str, count: int, entry: Field) -> None:
        _check(where, count, MAX_PARAMETERS, "parameters")
        for tag, _, begin, end in self._fields(*entry[2:]):
            if tag == _KEY:
                check_name(f"{where}, a parameter's name", end - begin)

    def _contents(self, where: str, begin: int, end: int) -> None:
        self._num_typed_bytes += end - begin
        if self._num_typed_bytes > MAX_TYPED_BYTES:
            raise InvalidRequestError(
                f"{where}: typed contents of {self._num_typed_bytes} bytes and more, at most "
                f"{MAX_TYPED_BYTES} are taken; send raw_input_contents, which have no such limit"
            )
        self._fields(begin, end)  # which are what is counted: a packed one holds all elements


def _check_elements(where: str, dims: list[int]) -> None:
    """Negative dimensions are left to the model's signature: they need no memory."""
    if any(dim > _LARGEST_DIM for dim in dims):
        return
    # A dimension of 0 hides the others, and numpy multiplies them nevertheless.
    num_elements = prod(max(dim, 1) for dim in dims)
    if num_elements > MAX_ELEMENTS:
        raise InvalidRequestError(
            f"{where}: shape {dims} has {num_elements} elements, expected at most {MAX_ELEMENTS}"
        )


def _check(where: str, found: int, limit: int, unit: str) -> None:
    if found > limit:
        raise InvalidRequestError(f"{where}: expected at most {limit} {unit}, got {found} or more")
