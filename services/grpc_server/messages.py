"""gRPC's messages in a stream of bytes: length-prefixed, perhaps compressed.

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
# Of a message that waits to be taken, beside its bytes.
_OVERHEAD_BYTES: Final = 64
# A message of at least this size is received into a buffer of its own and never copied again.
LARGE_BYTES: Final = 65_536


class StatusError(Exception):
    """The bytes are no message that is taken; ends the call with a status."""

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
    """A whole message as it came, compressed.

    Attributes:
        encoding: how, in the words of `grpc-encoding`.
        max_bytes: what it may be once it is unpacked.
    """

    body: Message
    encoding: str
    max_bytes: int


class MessageAssembler:
    """Takes the bytes of one call as they come; gives whole messages in order.

    Attributes:
        num_whole: messages that nobody took yet.
        num_whole_bytes: what they take here, so that empty ones count too.
        large: the buffer of a message that is not whole, to be read into; None otherwise.
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
        """Nothing came yet.

        Args:
            max_bytes: of a message.
            encoding: how a compressed one is compressed.
            take: gives memory for a large one that is not.
            max_unpacked: of a compressed one, bytes once it is unpacked; None: `max_bytes`.
        """
        self._whole: deque[Message | CompressedMessage] = deque()
        self._max_unpacked = max_bytes if max_unpacked is None else min(max_bytes, max_unpacked)
        self.num_whole_bytes = 0
        self.large: LargeBuffer | None = None
        self._max_bytes, self._encoding, self._take = max_bytes, encoding, take
        # The beginning of a message, with its prefix; of a large one the prefix alone.
        self._head = bytearray()
        self._size = -1
        self._is_compressed = False

    @property
    def num_whole(self) -> int:
        """Messages that nobody took yet."""
        return len(self._whole)

    @property
    def size(self) -> int:
        """Of the message that has begun and is not whole, as it comes; -1 until it is known."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """All that came and was not taken."""
        return self.num_whole_bytes + self.num_partial_bytes

    @property
    def num_partial_bytes(self) -> int:
        """What came of the message that is not complete."""
        large = self.large
        return len(self._head) if large is None else len(large.payload) - len(large.room)

    @property
    def is_compressed(self) -> bool:
        """Whether that message is."""
        return self._is_compressed

    @property
    def is_inside(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self._size >= 0 or bool(self._head)

    def feed(self, piece: memoryview) -> None:
        """Take more bytes.

        Raises:
            StatusError: a message is too large, or compressed in a way that was not announced.
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
        """So many bytes were read into the room of `large`; raises as `feed`."""
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
        """Bytes of the message's body that were taken."""
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
        # Unpacked by whoever takes it: what nobody takes shall not grow to a thousand times that.
        is_packed = self._is_compressed
        whole = CompressedMessage(body, self._encoding, self._max_unpacked) if is_packed else body
        self._whole.append(whole)
        self.num_whole_bytes += _OVERHEAD_BYTES + len(body)

    def add(self, message: Message) -> None:
        """A whole message that came otherwise."""
        self._whole.append(message)
        self.num_whole_bytes += _OVERHEAD_BYTES + len(message)

    def take(self) -> Message | CompressedMessage:
        """The oldest whole message, of which there is one."""
        message = self._whole.popleft()
        body = message.body if isinstance(message, CompressedMessage) else message
        self.num_whole_bytes -= _OVERHEAD_BYTES + len(body)
        return message

    def check_size(self, size: int) -> None:
        """Raises StatusError for a message that is larger than this server takes."""
        if size > self._max_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"message of {size} bytes: at most {self._max_bytes} are taken",
            )
