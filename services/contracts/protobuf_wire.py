"""Protobuf's wire format as far as Smelt walks it itself: numbers, and where fields end."""

from collections.abc import Iterator
from typing import NamedTuple

from services.contracts.errors import InvalidRequestError
from services.contracts.frames import Payload

VARINT, LENGTH_DELIMITED = 0, 2
# Walking is work on the event loop, where all requests wait for it.
MAX_FIELDS = 10_000
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


class Field(NamedTuple):
    """One field of a message: its number, its wire type and where its value lies."""

    number: int
    wire_type: int
    begin: int
    end: int


def varint(view: Payload, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it.

    Raises:
        InvalidRequestError: it does not end within the bytes, or is longer than any number.
    """
    if position < len(view) and view[position] < 0x80:  # nearly all are of one byte
        return view[position], position + 1
    value = 0
    for count in range(min(_MAX_VARINT_BYTES, len(view) - position)):
        byte = view[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise malformed(f"no end of the number at byte {position}")


def field_span(view: Payload, tag: int, position: int) -> tuple[int, int]:
    """Begin and end of a field's value, which starts at `position`.

    Raises:
        InvalidRequestError: the field ends beyond the bytes, or has no known wire type.
    """
    wire_type = tag & 7
    if wire_type == VARINT:
        return position, varint(view, position)[1]
    if wire_type == LENGTH_DELIMITED:
        num_bytes, position = varint(view, position)
    elif wire_type in _FIXED_BYTES:
        num_bytes = _FIXED_BYTES[wire_type]
    else:
        raise malformed(f"wire type {wire_type} at byte {position}")
    if position + num_bytes > len(view):
        raise malformed(f"a field of {num_bytes} bytes at byte {position} of {len(view)}")
    return position, position + num_bytes


def fields_of(view: Payload, begin: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message between two positions, in order.

    Raises:
        InvalidRequestError: the bytes are no message.
    """
    within = memoryview(view)[:end]
    position = begin
    while position < len(within):
        tag, position = varint(within, position)
        start, position = field_span(within, tag, position)
        yield Field(tag >> 3, tag & 7, start, position)


def varint_bytes(value: int) -> bytes:
    """A number as it is written before a field's bytes."""
    if value < 0x80:
        return _ONE_BYTE[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def malformed(found: str) -> InvalidRequestError:
    """The refusal of bytes that no protobuf library would write."""
    return InvalidRequestError(f"request is not a ModelInferRequest: found {found}")
