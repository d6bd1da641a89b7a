"""Unpacks compressed messages: never more than is taken, and off the event loop once that is much.

A message can be a thousand times what was sent of it, and a MiB of it takes milliseconds. What
becomes large stays in memory only with room for it, as what is large when it comes.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from services.grpc_server.limits import SMALL_BYTES
from services.grpc_server.messages import CompressedMessage, Message, StatusError

# Of zlib: raw deflate has no name in gRPC, and its `deflate` is what zlib writes.
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# What the event loop unpacks itself: usually in a tenth of a millisecond, as long as a thread
# costs. A body that is made to be slow, as of a thousand empty blocks, takes ten times that.
_AT_ONCE_IN_BYTES: Final = 16_384
_AT_ONCE_BYTES: Final = 65_536
# Of one step: zlib copies what it did not read yet, and nobody wants to wait for more.
_IN_BYTES: Final = 65_536
_OUT_BYTES: Final = 1 << 20
# gzip may be of several members, one behind the other (RFC 1952, section 2.2), and gRPC in Go and
# Java reads it so; C-core refuses it with INTERNAL, as it does all that stands behind an end. Here
# members are taken and nothing else; not many, as each costs far more than its 20 bytes.
_MAX_MEMBERS: Final = 1000
# Few, so that few messages grow at once; they have no other work. What takes long has threads of
# its own, or many that become large would hold up those that do not.
_POOL: Final = ThreadPoolExecutor(2, "decompress")
_LARGE_POOL: Final = ThreadPoolExecutor(2, "decompress-large")


async def decompressed(
    message: CompressedMessage, reserve: Callable[[int], Awaitable[None]] | None
) -> Message:
    """The message.

    Args:
        message: as it came.
        reserve: returns once there is memory for so many bytes, and is awaited where the message
            becomes larger than SMALL_BYTES; None where there is memory for whatever it becomes.

    Raises:
        StatusError: it cannot be decompressed, or is too large then; what `reserve` raises.
    """
    if reserve is not None:
        small = Decompression(message)
        if len(message.body) <= _AT_ONCE_IN_BYTES and small.advance(_AT_ONCE_BYTES):
            return bytes(small.message)
        if await _advanced(small, SMALL_BYTES, _POOL):
            return memoryview(small.message)
        # What waits holds no memory, and is decompressed a second time: how large it becomes is
        # not known before its end.
        del small
        await reserve(message.max_bytes)
    large = Decompression(message)
    await _advanced(large, message.max_bytes, _LARGE_POOL)
    return memoryview(large.message)


async def _advanced(
    decompression: "Decompression", num_bytes: int, pool: ThreadPoolExecutor
) -> bool:
    """As `advance`, beside the event loop."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(pool, decompression.advance, num_bytes)
    except asyncio.CancelledError:
        decompression.is_wanted = False
        raise


class Decompression:
    """One message on its way out of its compression.

    Attributes:
        message: what is unpacked so far; it grows in place, and is never there twice.
        is_wanted: whether anybody still waits for it.
    """

    def __init__(self, packed: CompressedMessage) -> None:
        """Nothing is unpacked yet."""
        self.message = bytearray()
        self.is_wanted = True
        self._max_bytes = packed.max_bytes
        self._packed, self._rest = packed, memoryview(packed.body)
        self._given = b""
        self._num_members = 1
        self._decompressor = zlib.decompressobj(_WINDOW_BITS[packed.encoding])

    @property
    def num_bytes(self) -> int:
        """Of what is unpacked so far."""
        return len(self.message)

    def advance(self, num_bytes: int) -> bool:
        """Unpack up to about so many bytes in all; whether that is the whole message."""
        while self.is_wanted and self.num_bytes <= num_bytes:
            is_more = self._step(num_bytes)
            self._check_size()
            if self._decompressor.eof:
                if not self._has_next_member():
                    return True
            elif not is_more:
                raise _fault(f"in {self._packed.encoding} is cut off")
        return False

    def _step(self, num_bytes: int) -> bool:
        """Unpack a piece; whether anything went in or came out."""
        given = self._given
        if not given:
            given, self._rest = bytes(self._rest[:_IN_BYTES]), self._rest[_IN_BYTES:]
        most = min(_OUT_BYTES, num_bytes + 1, self._max_bytes + 1)
        try:
            piece = self._decompressor.decompress(given, most)
        except zlib.error as error:
            where = "" if self._num_members == 1 else " behind its first end"
            raise _fault(f"is not {self._packed.encoding}{where}: {error}") from error
        self._given = self._decompressor.unconsumed_tail
        self.message += piece
        return bool(piece or given)

    def _has_next_member(self) -> bool:
        """Whether anything follows an end; if so, go on with it."""
        self._given = self._decompressor.unused_data
        if not self._given and not self._rest:
            return False
        if self._packed.encoding != "gzip":
            raise _fault(f"in {self._packed.encoding} goes on behind its end")
        if self._num_members == _MAX_MEMBERS:
            raise _fault(f"in gzip has more than {_MAX_MEMBERS} members")
        self._num_members += 1
        self._decompressor = zlib.decompressobj(_WINDOW_BITS["gzip"])
        return True

    def _check_size(self) -> None:
        if self.num_bytes > self._max_bytes:
            packed = self._packed
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"message of {len(packed.body)} bytes in {packed.encoding} holds more than "
                f"{self._max_bytes} bytes, which is the most that is unpacked "
                "(max_decompressed_bytes); send less, or send it uncompressed",
            )


def _fault(what: str) -> StatusError:
    return StatusError(grpc.StatusCode.INTERNAL, f"a message {what}")
