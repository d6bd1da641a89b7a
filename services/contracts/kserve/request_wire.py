"""Tensor bytes cut out of, and put into, protobuf messages without copies.

A protobuf library copies a bytes field on parsing and again on access. For image-sized
tensors those copies cost more than everything else a replica does to a request, so the
repeated bytes field at the end of the infer messages is handled here, on the wire.
"""

from collections.abc import Iterable

from services.contracts.errors import AnswerTooLargeError
from services.contracts.kserve.protobuf_wire import LENGTH_DELIMITED, fields_of, varint_bytes
from services.contracts.transport.frames import MAX_PAYLOAD_BYTES, Payload

_ID_TAG = 3 << 3 | LENGTH_DELIMITED
_RAW_INPUT_TAG = 7 << 3 | LENGTH_DELIMITED
_RAW_OUTPUT_TAG = 6 << 3 | LENGTH_DELIMITED
_ID, _RAW_INPUT, _RAW_OUTPUT = (bytes([t]) for t in (_ID_TAG, _RAW_INPUT_TAG, _RAW_OUTPUT_TAG))


def split_request(payload: Payload) -> tuple[bytes, bytes, list[memoryview]]:
    """Cut a ModelInferRequest into all but `id` and `raw_input_contents`, and those two.

    What is left is the same for many requests of one client.

    Raises:
        InvalidRequestError: as `split_message`.
    """
    return split_message(payload, _RAW_INPUT_TAG)


def split_response(payload: Payload) -> tuple[bytes, bytes, list[memoryview]]:
    """Cut a ModelInferResponse into all but `id` and `raw_output_contents`, and those two.

    Raises:
        InvalidRequestError: as `split_message`.
    """
    return split_message(payload, _RAW_OUTPUT_TAG)


def split_message(payload: Payload, raw_tag: int) -> tuple[bytes, bytes, list[memoryview]]:
    """Cut a message of inference into all but `id` and the fields with a tag, and those two.

    Raises:
        InvalidRequestError: the payload ends inside a field, has an unknown wire type, or more
            than MAX_FIELDS fields.
    """
    view = memoryview(payload).toreadonly()
    head = []
    request_id = b""
    raw_contents = []
    head_from = 0
    for tag, start, begin, end in fields_of(view):
        if tag == raw_tag:
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
    """A serialised ModelInferResponse of its parts.

    Args:
        head: serialised, all but `id` and `raw_output_contents`.
        request_id: UTF-8; may be empty.
        raw_contents: one per output, in the order of the head's outputs.

    Raises:
        AnswerTooLargeError: it has more bytes than a message may; nothing of it is copied then.
    """
    pieces: list[bytes | memoryview] = [head, id_field(request_id)]
    for raw in raw_contents:
        num_bytes = len(raw) if isinstance(raw, bytes) else raw.nbytes
        pieces += (_RAW_OUTPUT + varint_bytes(num_bytes), raw)
    size = sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)
    if size > MAX_PAYLOAD_BYTES:
        # Who takes it would have to close the connection, and with it fail everyone else.
        raise AnswerTooLargeError(
            f"the answer has {size} bytes, at most {MAX_PAYLOAD_BYTES} fit a message; "
            "ask for less at once"
        )
    return b"".join(pieces)


def id_field(request_id: bytes) -> bytes:
    """The field `id` of a request or response; nothing where it is empty."""
    return _ID + varint_bytes(len(request_id)) + request_id if request_id else b""


def raw_input_head(num_bytes: int) -> bytes:
    """What stands before one of `raw_input_contents`."""
    return _RAW_INPUT + varint_bytes(num_bytes)
