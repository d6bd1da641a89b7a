"""Tensor bytes cut out of, and put into, protobuf messages without copies.

A protobuf library copies a bytes field on parsing and again on access. For image-sized
tensors those copies cost more than everything else a replica does to a request, so the
repeated bytes field at the end of the infer messages is handled here, on the wire.
"""

from collections.abc import Iterable

from services.contracts.errors import InvalidRequestError

_LENGTH_DELIMITED = 2
_ID_TAG = 3 << 3 | _LENGTH_DELIMITED
_RAW_INPUT_TAG = 7 << 3 | _LENGTH_DELIMITED
_RESPONSE_ID_TAG = bytes([3 << 3 | _LENGTH_DELIMITED])
_RAW_OUTPUT_TAG = bytes([6 << 3 | _LENGTH_DELIMITED])
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))
# Walking is work on the event loop, where all requests wait for it.
MAX_FIELDS = 10_000


def split_request(
    payload: bytes | bytearray | memoryview,
) -> tuple[bytes, bytes, list[memoryview]]:
    """Cut a ModelInferRequest into all but `id` and `raw_input_contents`, and those two.

    What is left is the same for many requests of one client.

    Raises:
        InvalidRequestError: the payload ends inside a field, has an unknown wire type, or more
            than MAX_FIELDS fields.
    """
    view = memoryview(payload).toreadonly()
    head, request_id, raw_contents = [], b"", []
    position, head_from, num_fields, end = 0, 0, 0, len(view)
    while position < end:
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise _malformed(f"more than {MAX_FIELDS} fields")
        start = position
        tag, position = _varint(view, position)
        begin, position = _field_span(view, tag, position)
        if tag == _RAW_INPUT_TAG:
            raw_contents.append(view[begin:position])
        elif tag == _ID_TAG:
            request_id = bytes(view[begin:position])
        else:
            continue
        head.append(view[head_from:start])
        head_from = position
    head.append(view[head_from:])
    return b"".join(head), request_id, raw_contents


def join_response(
    head: bytes, request_id: bytes, raw_contents: Iterable[bytes | memoryview]
) -> bytes:
    """A serialised ModelInferResponse from all but `id` and `raw_output_contents`, and those."""
    pieces: list[bytes | memoryview] = [head]
    if request_id:
        pieces += (_RESPONSE_ID_TAG + _varint_bytes(len(request_id)), request_id)
    for raw in raw_contents:
        num_bytes = len(raw) if isinstance(raw, bytes) else raw.nbytes
        pieces += (_RAW_OUTPUT_TAG + _varint_bytes(num_bytes), raw)
    return b"".join(pieces)


def _field_span(view: memoryview, tag: int, position: int) -> tuple[int, int]:
    """Begin and end of a field's value, which starts at `position`."""
    wire_type = tag & 7
    if wire_type == 0:
        return position, _varint(view, position)[1]
    if wire_type == _LENGTH_DELIMITED:
        num_bytes, position = _varint(view, position)
    elif wire_type in _FIXED_BYTES:
        num_bytes = _FIXED_BYTES[wire_type]
    else:
        raise _malformed(f"wire type {wire_type} at byte {position}")
    if position + num_bytes > len(view):
        raise _malformed(f"a field of {num_bytes} bytes at byte {position} of {len(view)}")
    return position, position + num_bytes


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    if position < len(view) and view[position] < 0x80:  # nearly all are of one byte
        return view[position], position + 1
    value = 0
    for count in range(min(_MAX_VARINT_BYTES, len(view) - position)):
        byte = view[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise _malformed(f"no end of the number at byte {position}")


def _varint_bytes(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _malformed(found: str) -> InvalidRequestError:
    return InvalidRequestError(f"request is not a ModelInferRequest: found {found}")
