"""Decompresses messages: up to a limit, and off the event loop once that is much.

A message can be a thousand times what was sent, and a MiB of it takes milliseconds. One that
becomes large needs a reservation of memory, as one that is sent large.
"""

import asyncio
import os
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from services.grpc_server.limits import SMALL_BYTES
from services.grpc_server.request.messages import CompressedMessage, Message, StatusError

# Of zlib: gRPC's `deflate` has zlib's header (RFC 1950).
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# What the event loop decompresses itself: usually in a tenth of a millisecond, which a thread
# costs too. A hostile body, as of a thousand empty blocks, takes ten times that.
_AT_ONCE_IN_BYTES: Final = 16_384
_AT_ONCE_BYTES: Final = 65_536
# Of one step: zlib copies the input that it did not use.
_IN_BYTES: Final = 65_536
_OUT_BYTES: Final = 1 << 20
# gzip may have several members (RFC 1952, section 2.2), which gRPC in Go and Java accepts and
# C-core refuses with INTERNAL. Few, as each costs far more than its 20 bytes; anything else behind
# the end is refused.
_MAX_MEMBERS: Final = 1000
# Few threads, so that few messages grow at a time, and a processor is left for the event loop.
# Large messages have threads of their own, so that they do not delay small ones.
_POOL: Final = ThreadPoolExecutor(2 if (os.cpu_count() or 1) > 2 else 1, "decompress")
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
    """As `Decompression.advance`, on a thread."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(pool, decompression.advance, num_bytes)
    except asyncio.CancelledError:
        decompression.is_wanted = False
        raise


class Decompression:
    """One message that is decompressed step by step.

    Attributes:
        message: what is decompressed so far; it grows in place.
        is_wanted: False ends it, as its call has ended.
    """

    def __init__(self, packed: CompressedMessage) -> None:
        """Nothing is decompressed."""
        self.message = bytearray()
        self.is_wanted = True
        self._max_bytes = packed.max_bytes
        self._packed = packed
        self._rest = memoryview(packed.body)
        self._given = b""
        self._num_members = 1
        self._decompressor = zlib.decompressobj(_WINDOW_BITS[packed.encoding])

    @property
    def num_bytes(self) -> int:
        """That are decompressed so far."""
        return len(self.message)

    def advance(self, num_bytes: int) -> bool:
        """Decompress until the message has about so many bytes; whether it is complete.

        Raises StatusError for compressed data that is damaged, cut short or too large.
        """
        while self.is_wanted and self.num_bytes <= num_bytes:
            is_more = self._step(num_bytes)
            self._check_size()
            if self._decompressor.eof:
                if not self._has_next_member():
                    return True
            elif not is_more:
                raise _fault(f"in {self._packed.encoding} is incomplete")
        return False

    def _step(self, num_bytes: int) -> bool:
        """Decompress a piece; whether there was any input or output."""
        given = self._given
        if not given:
            given = bytes(self._rest[:_IN_BYTES])
            self._rest = self._rest[_IN_BYTES:]
        most = min(_OUT_BYTES, num_bytes + 1, self._max_bytes + 1)
        try:
            piece = self._decompressor.decompress(given, most)
        except zlib.error as error:
            where = "" if self._num_members == 1 else " after its first end"
            raise _fault(f"is not {self._packed.encoding}{where}: {error}") from error
        self._given = self._decompressor.unconsumed_tail
        self.message += piece
        return bool(piece or given)

    def _has_next_member(self) -> bool:
        """Whether another member of gzip follows; raises StatusError for anything else."""
        self._given = self._decompressor.unused_data
        if not self._given and not self._rest:
            return False
        if self._packed.encoding != "gzip":
            raise _fault(f"in {self._packed.encoding} has data after its end")
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
                f"{self._max_bytes} bytes, the limit of decompressed requests "
                "(max_decompressed_bytes); send less, or send it uncompressed",
            )


def _fault(what: str) -> StatusError:
    return StatusError(grpc.StatusCode.INTERNAL, f"a message {what}")
