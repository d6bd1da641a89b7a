"""From header blocks to the calls that they begin.

Decoding is the `hpack` library's. Clients send the same block for call after call, so what a
block meant is remembered for as long as the table it refers to stays as it is.
"""

from typing import Final

from hpack import Decoder, HPACKError, OversizedHeaderListError

from services.grpc_server.flood import FloodGuard
from services.grpc_server.frames import ErrorCode, Http2ConnectionError
from services.grpc_server.request_headers import (
    RequestHeaders,
    check_trailers,
    request_headers_from_fields,
)

# What a connection may have remembered, over all of its blocks: an idle one keeps it.
_MAX_FIELDS: Final = 192
_MAX_BYTES: Final = 16_384
# So much beside its metadata.
_FIELDS_PER_START: Final = 3
# As much work as another frame: decoding takes microseconds a field, and, where a string is
# compressed, half of one a byte.
_FIELDS_PER_FRAME: Final = 8
_BYTES_PER_FRAME: Final = 128
# Of what is announced: a list above that is refused with its call, one above this with its
# connection, as gRPC's own soft and hard limits do it. What was not decoded wholly leaves a table
# that nothing can be read with any more.
_HARD_LIMIT: Final = 2
# The first bits of a change of the table's size, and how many a block may begin with.
_SIZE_UPDATE: Final = 0x20
_MAX_SIZE_UPDATES: Final = 2


class HeaderDecoder:
    """One connection's; blocks must be read in the order in which they came, all of them."""

    def __init__(self, max_metadata_bytes: int, guard: FloodGuard) -> None:
        """`max_metadata_bytes` as in `Limits`; what is decoded is charged to `guard`."""
        self._decoder = Decoder(max_header_list_size=_HARD_LIMIT * max_metadata_bytes)
        self._max_metadata_bytes, self._guard = max_metadata_bytes, guard
        self._known: dict[bytes, RequestHeaders] = {}
        self._num_fields = self._num_bytes = 0

    def request_headers(self, block: bytes) -> RequestHeaders:
        """The call that a block begins.

        Raises:
            Http2ConnectionError: it cannot be decoded, or is a bomb; the table is lost with it.
            MalformedFieldsError: the fields are wrong; the table is as it should be.
        """
        known = self._known.get(block)
        return self._read(block) if known is None else known

    def trailers(self, block: bytes) -> None:
        """Read what a client says behind its messages; gRPC gives it no meaning.

        Raises:
            Http2ConnectionError, MalformedFieldsError: as for `request_headers`.
        """
        check_trailers(self._fields(block)[0])

    def _read(self, block: bytes) -> RequestHeaders:
        fields, is_lasting = self._fields(block)
        headers = request_headers_from_fields(fields, self._max_metadata_bytes)
        return self._remembered(block, headers) if is_lasting else headers

    def _remembered(self, block: bytes, headers: RequestHeaders) -> RequestHeaders:
        num_fields = len(headers.metadata) + _FIELDS_PER_START
        num_bytes = len(block) + headers.num_bytes
        if num_fields > _MAX_FIELDS // 4 or num_bytes > _MAX_BYTES // 4:
            return headers
        self._num_fields += num_fields
        self._num_bytes += num_bytes
        if self._num_fields > _MAX_FIELDS or self._num_bytes > _MAX_BYTES:
            self._forget()
            self._num_fields, self._num_bytes = num_fields, num_bytes
        self._known[block] = headers = headers._replace(num_bytes=0)
        return headers

    def _forget(self) -> None:
        self._known.clear()
        self._num_fields = self._num_bytes = 0

    def _fields(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The fields, and whether the same bytes mean the same again."""
        _check_size_updates(block)
        before = self._table_state()
        try:
            fields = list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        # Afterwards, as nothing says before how many there are; a block has its bounds.
        self._guard.charge(len(fields) // _FIELDS_PER_FRAME + len(block) // _BYTES_PER_FRAME)
        after = self._table_state()
        # Entries that are equal are not the same: compared by what they are.
        is_lasting = before[0] is after[0] and before[1:] == after[1:]
        if not is_lasting:
            self._forget()
        return fields, is_lasting  # type: ignore[return-value] # bytes, as they are raw

    def _table_state(self) -> tuple[object, int, int]:
        """What differs after any change: a new entry is a new object in front of the others."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return entries[0] if entries else None, len(entries), table.maxsize


def _check_size_updates(block: bytes) -> None:
    """Raise Http2ConnectionError for more changes of the table's size than a block may begin with.

    The decoder takes any number, and each costs it microseconds (RFC 7541, section 4.2).
    """
    at = num_updates = 0
    while at < len(block) and block[at] & 0xE0 == _SIZE_UPDATE:
        num_updates += 1
        if num_updates > _MAX_SIZE_UPDATES:
            raise Http2ConnectionError(
                ErrorCode.COMPRESSION_ERROR, "too many changes of table size"
            )
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        if is_long:
            while at < len(block) and block[at] & 0x80:
                at += 1
            at += 1
