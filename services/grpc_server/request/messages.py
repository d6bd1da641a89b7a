"""gRPC's Length-Prefixed-Messages in a stream of bytes, perhaps compressed.

A message: compressed uint8 | length uint32 | bytes.
"""

import struct
from collections import deque
from typing import Final, NamedTuple

import grpc

from services.contracts.transport.large_buffer import LargeBuffer, Take
from services.grpc_server.headers.request_headers import Metadatum

Message = bytes | memoryview
PREFIX: Final = struct.Struct("!BI")
# Counted of a message that is not taken, beside its bytes.
_OVERHEAD_BYTES: Final = 64
# A message of this size or more is received into a buffer of its own and not copied again.
LARGE_BYTES: Final = 65_536


class StatusError(Exception):
    """Ends a call with a status."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        trailing: tuple[Metadatum, ...] = (),
        *,
        is_overload: bool = False,
    ) -> None:
        """Keep what the client gets.

        Args:
            code: status of the call.
            details: text of the status.
            trailing: metadata that is sent with it.
            is_overload: a bound of memory or of requests was reached.
        """
        super().__init__(details)
        self.code = code
        self.trailing = trailing
        self.is_overload = is_overload


class CompressedMessage(NamedTuple):
    """A complete message, compressed as it came.

    Attributes:
        encoding: as in `grpc-encoding`.
        max_bytes: once it is decompressed.
    """

    body: Message
    encoding: str
    max_bytes: int


class MessageAssembler:
    """Assembles the messages of one call from bytes as they come.

    Attributes:
        num_whole_bytes: of complete messages that are not taken, empty ones counted too.
        size: of the incomplete message, as it is sent; -1 until its prefix is complete.
        is_compressed: of that message.
        large: its buffer, if it is large; None otherwise.
    """

    __slots__ = (
        "_encoding",
        "_head",
        "_max_bytes",
        "_max_unpacked",
        "_take",
        "_whole",
        "is_compressed",
        "large",
        "num_whole_bytes",
        "size",
    )

    def __init__(
        self,
        max_bytes: int,
        encoding: str,
        take: Take | None = None,
        max_unpacked: int | None = None,
    ) -> None:
        """Nothing was received.

        Args:
            max_bytes: of a message.
            encoding: of compressed ones, as in `grpc-encoding`.
            take: allocates memory for large ones that are not compressed.
            max_unpacked: of compressed ones once they are decompressed; None: `max_bytes`.
        """
        self._whole: deque[Message | CompressedMessage] = deque()
        self._max_unpacked = max_bytes if max_unpacked is None else min(max_bytes, max_unpacked)
        self.num_whole_bytes = 0
        self.large: LargeBuffer | None = None
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._take = take
        # What came of the prefix, or of a message that is not large.
        self._head = bytearray()
        self.size = -1
        self.is_compressed = False

    @property
    def num_whole(self) -> int:
        """Complete messages that are not taken."""
        return len(self._whole)

    @property
    def num_bytes(self) -> int:
        """All that was received and not taken."""
        return self.num_whole_bytes + self.num_partial_bytes

    @property
    def num_partial_bytes(self) -> int:
        """Of the incomplete message."""
        large = self.large
        return len(self._head) if large is None else len(large.payload) - len(large.room)

    @property
    def is_inside(self) -> bool:
        """Whether a message is incomplete."""
        return self.size >= 0 or bool(self._head)

    def feed(self, piece: memoryview) -> None:
        """Take more bytes.

        Raises:
            StatusError: a message is too large, or marked as compressed without `grpc-encoding`.
        """
        while piece:
            if self.large is not None:
                taken = min(len(piece), len(self.large.room))
                self.large.room[:taken] = piece[:taken]
                self.filled(taken)
            elif self.size < 0:
                taken = min(len(piece), PREFIX.size - len(self._head))
                self._head += piece[:taken]
                if len(self._head) == PREFIX.size:
                    self._begin()
            else:
                taken = self._feed_body(piece)
            piece = piece[taken:]

    def filled(self, num_bytes: int) -> None:
        """So many bytes were read into `large`; raises as `feed`."""
        large = self.large
        assert large is not None
        large.advance(num_bytes)
        if not large.room:
            self.large = None
            self._end(large.payload)

    def _begin(self) -> None:
        compressed, size = PREFIX.unpack(self._head)
        self._head.clear()
        # gRPC: a compressed message without an encoding is INTERNAL, as no reader could take it.
        if compressed > 1 or (compressed and self._encoding == "identity"):
            raise StatusError(
                grpc.StatusCode.INTERNAL,
                f"a message is marked with {compressed}, but its compression is '{self._encoding}'",
            )
        # By the prefix alone: nothing is allocated for a message that is refused.
        if size > self._max_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"message of {size} bytes: at most {self._max_bytes} are received",
            )
        self.is_compressed = bool(compressed)
        self.size = size
        # No further byte will come that could end it.
        if not size:
            self._end(b"")

    def _feed_body(self, piece: memoryview) -> int:
        """Take bytes of the message; returns how many."""
        if self.size >= LARGE_BYTES:
            taken = min(len(piece), self.size)
            # Compressed bytes go no further than here: they need no memory that can be passed on.
            take = None if self.is_compressed else self._take
            self.large = LargeBuffer(self.size, piece[:taken], take)
            self.filled(0)
            return taken
        taken = min(len(piece), self.size - len(self._head))
        self._head += piece[:taken]
        if len(self._head) == self.size:
            body = bytes(self._head)
            self._head.clear()
            self._end(body)
        return taken

    def _end(self, body: Message) -> None:
        self.size = -1
        self.add(body)
        if self.is_compressed:
            # Decompressed when it is taken: until then it stays as small as it was sent.
            self._whole[-1] = CompressedMessage(body, self._encoding, self._max_unpacked)

    def add(self, message: Message) -> None:
        """Add a complete message."""
        self._whole.append(message)
        self.num_whole_bytes += _OVERHEAD_BYTES + len(message)

    def take(self) -> Message | CompressedMessage:
        """The oldest complete message, of which there is one."""
        message = self._whole.popleft()
        body = message.body if isinstance(message, CompressedMessage) else message
        self.num_whole_bytes -= _OVERHEAD_BYTES + len(body)
        return message
