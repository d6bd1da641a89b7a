"""Protobuf's wire format as far as Smelt walks it itself: numbers, and where fields end."""

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frames import Payload

VARINT = 0
LENGTH_DELIMITED = 2
# Walking is work on the event loop, where all requests wait for it.
MAX_FIELDS = 10_000
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10
_MAX_VARINT_BITS = 7 * _MAX_VARINT_BYTES
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))
# Of the fields that clients send: numbers 1 to 15, length-delimited.
_PLAIN_TAGS = frozenset(number << 3 | LENGTH_DELIMITED for number in range(1, 16))

# One field: its tag (number << 3 | wire type), where that is, and begin and end of its value. A
# plain tuple, as a request has some ten of them and is walked by gateway and replica.
Field = tuple[int, int, int, int]


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


def fields_of(view: Payload, begin: int = 0, end: int | None = None) -> list[Field]:
    """The fields of the message between two positions, in order; their values are stepped over.

    Args:
        view: bytes that the message lies in.
        begin: of the message.
        end: of it, by default that of the bytes.

    Raises:
        InvalidRequestError: the bytes are no message, or one of more than MAX_FIELDS fields.
    """
    if end is not None:
        view = memoryview(view)[:end]
    found: list[Field] = []
    add = found.append
    position = begin
    stop = len(view)
    try:
        for _ in range(MAX_FIELDS):
            if position >= stop:
                break
            start = position
            tag = view[start]
            if tag in _PLAIN_TAGS:
                size = view[start + 1]
                at = start + 2
                if size >= 0x80:
                    # As `varint` does, whose call would cost more than all of this.
                    byte = size
                    size = size & 0x7F
                    shift = 7
                    while byte >= 0x80 and shift < _MAX_VARINT_BITS:
                        byte = view[at]
                        size |= (byte & 0x7F) << shift
                        at = at + 1
                        shift = shift + 7
                position = at + size
            else:
                tag, at = varint(view, start)
                at, position = _span(view, tag & 7, at)
            add((tag, start, at, position))
    except IndexError as error:
        raise malformed(f"no end of the number at byte {start + 1}") from error
    if position > stop:
        raise malformed(f"a field of {position - at} bytes at byte {at} of {stop}")
    if position < stop:
        raise malformed(f"expected at most {MAX_FIELDS} fields, got more")
    return found


def _span(view: Payload, wire_type: int, at: int) -> tuple[int, int]:
    """Begin and end of a field's value, of which `at` is the first byte."""
    if wire_type == VARINT:
        return at, varint(view, at)[1]
    if wire_type == LENGTH_DELIMITED:
        num_bytes, at = varint(view, at)
        return at, at + num_bytes
    if wire_type in _FIXED_BYTES:
        return at, at + _FIXED_BYTES[wire_type]
    raise malformed(f"wire type {wire_type} at byte {at}")


def numbers_of(view: Payload, field: Field, most: int) -> list[int]:
    """The first numbers of a repeated field: packed, as all libraries write them, or one, unpacked.

    Args:
        view: of the message that the field lies in.
        field: as `fields_of` returns it.
        most: numbers to read; the rest is not walked.

    Raises:
        InvalidRequestError: the last one does not end within the field.
    """
    tag, _, at, end = field
    if tag & 7 == VARINT:
        return [varint(view, at)[0]]
    numbers: list[int] = []
    within = memoryview(view)[:end]
    while at < end and len(numbers) < most:
        number, at = varint(within, at)
        numbers.append(number)
    return numbers


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
    return InvalidRequestError(f"the message is not an inference.ModelInferRequest: {found}")
