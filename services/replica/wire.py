"""Tensor bytes cut out of, and put into, protobuf messages without copies.

A protobuf library copies a bytes field on parsing and again on access. For image-sized
tensors those copies cost more than everything else a replica does to a request, so the
repeated bytes field at the end of the infer messages is handled here, on the wire.
"""

from collections.abc import Iterable

from services.contracts.protobuf_wire import (
    LENGTH_DELIMITED,
    MAX_FIELDS,
    field_span,
    malformed,
    varint,
    varint_bytes,
)

_ID_TAG = 3 << 3 | LENGTH_DELIMITED
_RAW_INPUT_TAG = 7 << 3 | LENGTH_DELIMITED
_PLAIN_TAGS = frozenset(number << 3 | LENGTH_DELIMITED for number in range(1, 8))
_RESPONSE_ID_TAG = bytes([3 << 3 | LENGTH_DELIMITED])
_RAW_OUTPUT_TAG = bytes([6 << 3 | LENGTH_DELIMITED])


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
            raise malformed(f"more than {MAX_FIELDS} fields")
        start = position
        tag = view[start]
        if tag in _PLAIN_TAGS and start + 1 < end:
            # All fields that clients send; what the calls below check for them is known here.
            size, begin = view[start + 1], start + 2
            if size >= 0x80:
                size, begin = varint(view, start + 1)
            position = begin + size
            if position > end:
                raise malformed(f"a field of {size} bytes at byte {begin} of {end}")
        else:
            tag, position = varint(view, start)
            begin, position = field_span(view, tag, position)
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
        pieces += (_RESPONSE_ID_TAG + varint_bytes(len(request_id)), request_id)
    for raw in raw_contents:
        num_bytes = len(raw) if isinstance(raw, bytes) else raw.nbytes
        pieces += (_RAW_OUTPUT_TAG + varint_bytes(num_bytes), raw)
    return b"".join(pieces)
