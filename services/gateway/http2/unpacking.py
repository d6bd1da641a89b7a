"""Unpacks compressed messages: never more than is taken, and off the event loop once that is much.

A message can be a thousand times what was sent of it, and a MiB of it takes milliseconds.
"""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from services.gateway.http2.messages import Message, MessageFault, Packed

# Of zlib: raw deflate has no name in gRPC, and its `deflate` is what zlib writes.
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# What the event loop unpacks itself, in less than half a millisecond; a thread costs a fifth.
_AT_ONCE_BYTES: Final = 65_536
# Of one step: zlib copies what it did not read yet, and nobody wants to wait for more.
_IN_BYTES: Final = 65_536
_OUT_BYTES: Final = 1 << 20
# Few, so that few messages grow at once; they have no other work.
_POOL: Final = ThreadPoolExecutor(2, "unpack")


async def unpacked(packed: Packed) -> Message:
    """The message.

    Raises:
        MessageFault: it cannot be unpacked, or is too large then.
    """
    unpacking = _Unpacking(packed)
    if unpacking.go_on(_AT_ONCE_BYTES):
        return bytes(unpacking.message)
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(_POOL, unpacking.go_on, packed.max_bytes + 1)
    finally:
        unpacking.is_wanted = False
    return memoryview(unpacking.message)


class _Unpacking:
    """One message on its way out of its compression.

    Attributes:
        message: what is unpacked so far; it grows in place, and is never there twice.
        is_wanted: whether anybody still waits for it.
    """

    def __init__(self, packed: Packed) -> None:
        self.message, self.is_wanted = bytearray(), True
        self._packed, self._rest = packed, memoryview(packed.body)
        self._given = b""
        self._decompressor = zlib.decompressobj(_WINDOW_BITS[packed.encoding])

    def go_on(self, num_bytes: int) -> bool:
        """Unpack up to about so many bytes in all; whether that is the whole message."""
        while self.is_wanted and len(self.message) <= num_bytes:
            try:
                is_more = self._step(num_bytes)
            except zlib.error as error:
                raise MessageFault(
                    grpc.StatusCode.INTERNAL, f"a message is not {self._packed.encoding}: {error}"
                ) from error
            self._check_size()
            if self._decompressor.eof:
                return True
            if not is_more:
                raise MessageFault(
                    grpc.StatusCode.INTERNAL, f"a message in {self._packed.encoding} is cut off"
                )
        return False

    def _step(self, num_bytes: int) -> bool:
        """Unpack a piece; whether anything went in or came out."""
        given = self._given
        if not given:
            given, self._rest = bytes(self._rest[:_IN_BYTES]), self._rest[_IN_BYTES:]
        most = min(_OUT_BYTES, num_bytes + 1, self._packed.max_bytes + 1)
        piece = self._decompressor.decompress(given, most)
        self._given = self._decompressor.unconsumed_tail
        self.message += piece
        return bool(piece or given)

    def _check_size(self) -> None:
        packed = self._packed
        if len(self.message) > packed.max_bytes:
            raise MessageFault(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"message of {len(packed.body)} bytes in {packed.encoding} holds more than "
                f"{packed.max_bytes} bytes, which is the most that is unpacked "
                "(max_decompressed_bytes); send less, or send it uncompressed",
            )
