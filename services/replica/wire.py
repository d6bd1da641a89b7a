"""Tensor bytes cut out of, and put into, protobuf messages without copies.

A protobuf library copies a bytes field on parsing and again on access. For image-sized
tensors those copies cost more than everything else a replica does to a request, so the
repeated bytes field at the end of the infer messages is handled here, on the wire.
"""

from collections.abc import Iterable

from services.contracts.protobuf_wire import LENGTH_DELIMITED, fields_of, varint_bytes

_ID_TAG = 3 << 3 | LENGTH_DELIMITED
_RAW_INPUT_TAG = 7 << 3 | LENGTH_DELIMITED
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
    head_from = 0
    for tag, start, begin, end in fields_of(view):
        if tag == _RAW_INPUT_TAG:
            raw_contents.append(view[begin:end])
        elif tag == _ID_TAG:
            request_id = bytes(view[begin:end])
        else:
            continue
        head.append(view[head_from:start])
        head_from = end
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
