"""Decodes header blocks by HPACK (RFC 7541), with the `hpack` library.

Clients send the same block with each call: what it decodes to is kept for as long as the dynamic
table, which it refers to, stays unchanged.
"""

from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from services.grpc_server.headers.request_headers import (
    RequestHeaders,
    are_trailers,
    request_headers_from_fields,
)
from services.grpc_server.http2.flood import FloodGuard
from services.grpc_server.http2.frames import ErrorCode, Http2ConnectionError

# Kept of all blocks of a connection, for as long as that lasts.
_MAX_FIELDS: Final = 192
_MAX_BYTES: Final = 16_384
# Of pseudo-header fields and others beside metadata.
_FIELDS_PER_START: Final = 3
# Cost as much as a frame: decoding takes microseconds a field, and half of one a byte of a string
# in Huffman code.
_FIELDS_PER_FRAME: Final = 8
_BYTES_PER_FRAME: Final = 128
# Times SETTINGS_MAX_HEADER_LIST_SIZE, as gRPC has a soft and a hard limit: a list above the first
# ends its call, one above this its connection, as the dynamic table is lost with it.
_HARD_LIMIT: Final = 2
# Dynamic table size update, and how many a block may begin with (RFC 7541, section 4.2).
_SIZE_UPDATE: Final = 0x20
_MAX_SIZE_UPDATES: Final = 2


class HeaderDecoder:
    """One connection's; must decode all of its blocks in their order."""

    def __init__(self, max_metadata_bytes: int, guard: FloodGuard) -> None:
        """`max_metadata_bytes` as in `Limits`; decoding is charged to `guard`."""
        self._decoder = Decoder(max_header_list_size=_HARD_LIMIT * max_metadata_bytes)
        self._max_metadata_bytes = max_metadata_bytes
        self._guard = guard
        self._decoded: dict[bytes, RequestHeaders] = {}
        self._num_fields = self._num_bytes = 0

    def request_headers(self, block: bytes) -> RequestHeaders:
        """Decode the headers of a request.

        Raises:
            Http2ConnectionError: it cannot be decoded, or is far too long.
            MalformedFieldsError: the request is malformed (RFC 9113, section 8.1.1).
        """
        kept = self._decoded.get(block)
        return self._read(block) if kept is None else kept

    def are_trailers(self, block: bytes) -> bool:
        """Whether trailers of a request, which gRPC does not use, are well-formed.

        Raises:
            Http2ConnectionError: as `request_headers`.
        """
        return are_trailers(self._fields(block)[0])

    def _read(self, block: bytes) -> RequestHeaders:
        fields, is_repeatable = self._fields(block)
        headers = request_headers_from_fields(fields, self._max_metadata_bytes)
        return self._kept(block, headers) if is_repeatable else headers

    def _kept(self, block: bytes, headers: RequestHeaders) -> RequestHeaders:
        num_fields = len(headers.metadata) + _FIELDS_PER_START
        num_bytes = len(block) + headers.num_bytes
        if num_fields > _MAX_FIELDS // 4 or num_bytes > _MAX_BYTES // 4:
            return headers
        self._num_fields += num_fields
        self._num_bytes += num_bytes
        if self._num_fields > _MAX_FIELDS or self._num_bytes > _MAX_BYTES:
            self._clear()
            self._num_fields = num_fields
            self._num_bytes = num_bytes
        self._decoded[block] = headers = headers._replace(num_bytes=0)
        return headers

    def _clear(self) -> None:
        self._decoded.clear()
        self._num_fields = self._num_bytes = 0

    def _fields(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The fields, and whether the same block would decode to them again."""
        _check_size_updates(block)
        before = self._table_state()
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        # Afterwards, as their number is not known before; a block has its bounds.
        self._guard.charge(len(fields) // _FIELDS_PER_FRAME + len(block) // _BYTES_PER_FRAME)
        after = self._table_state()
        # By identity: a new entry may equal the one before.
        is_repeatable = before[0] is after[0] and before[1:] == after[1:]
        if not is_repeatable:
            self._clear()
        return fields, is_repeatable  # type: ignore[return-value] # bytes, as they are raw

    def _table_state(self) -> tuple[object, int, int]:
        """Differs after any change: a new entry is a new object in front of the others."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return entries[0] if entries else None, len(entries), table.maxsize


def _check_size_updates(block: bytes) -> None:
    """Raise Http2ConnectionError for more table size updates than a block may begin with.

    The library takes any number, and each costs microseconds.
    """
    at = num_updates = 0
    while at < len(block) and block[at] & 0xE0 == _SIZE_UPDATE:
        num_updates += 1
        if num_updates > _MAX_SIZE_UPDATES:
            raise Http2ConnectionError(
                ErrorCode.COMPRESSION_ERROR, "too many dynamic table size updates"
            )
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        if is_long:
            while at < len(block) and block[at] & 0x80:
                at += 1
            at += 1
