"""gRPC's Length-Prefixed-Messages in a stream of bytes, perhaps compressed.

A message: compressed uint8 | length uint32 | bytes.
"""

import struct
from collections import deque
from typing import Final, NamedTuple

import grpc

from services.contracts.large_buffer import LargeBuffer, Take
from services.grpc_server.request_headers import Metadatum

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
        super().__init__(details)
        self.code, self.trailing, self.is_overload = code, trailing, is_overload


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
        large: the buffer of an incomplete large message; None otherwise.
    """

    __slots__ = ("_encoding", "_head", "_is_compressed", "_max_bytes", "_max_unpacked",
                 "_size", "_take", "_whole", "large", "num_whole_bytes")  # fmt: skip

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
        self._max_bytes, self._encoding, self._take = max_bytes, encoding, take
        # What came of the prefix, or of a message that is not large.
        self._head = bytearray()
        self._size = -1
        self._is_compressed = False

    @property
    def num_whole(self) -> int:
        """Complete messages that are not taken."""
        return len(self._whole)

    @property
    def size(self) -> int:
        """Of the incomplete message, as it is sent; -1 until its prefix is complete."""
        return self._size

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
    def is_compressed(self) -> bool:
        """Whether the incomplete message is compressed."""
        return self._is_compressed

    @property
    def is_inside(self) -> bool:
        """Whether a message is incomplete."""
        return self._size >= 0 or bool(self._head)

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
            elif self._size < 0:
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
        if compressed > 1 or (compressed and self._encoding == "identity"):
            raise StatusError(
                grpc.StatusCode.INTERNAL,
                f"a message is marked with {compressed}, but its compression is '{self._encoding}'",
            )
        self.check_size(size)
        self._is_compressed = bool(compressed)
        self._size = size
        if not size:
            self._end(b"")

    def _feed_body(self, piece: memoryview) -> int:
        """Take bytes of the message; returns how many."""
        if self._size >= LARGE_BYTES:
            taken = min(len(piece), self._size)
            take = None if self._is_compressed else self._take
            self.large = LargeBuffer(self._size, piece[:taken], take)
            self.filled(0)
            return taken
        taken = min(len(piece), self._size - len(self._head))
        self._head += piece[:taken]
        if len(self._head) == self._size:
            body = bytes(self._head)
            self._head.clear()
            self._end(body)
        return taken

    def _end(self, body: Message) -> None:
        self._size = -1
        # Decompressed when it is taken: until then it stays as small as it was sent.
        is_packed = self._is_compressed
        whole = CompressedMessage(body, self._encoding, self._max_unpacked) if is_packed else body
        self._whole.append(whole)
        self.num_whole_bytes += _OVERHEAD_BYTES + len(body)

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

    def check_size(self, size: int) -> None:
        """Raise StatusError for a message above `max_bytes`."""
        if size > self._max_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"message of {size} bytes: at most {self._max_bytes} are received",
            )
