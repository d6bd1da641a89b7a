"""An HTTP/1.1 client that costs little: keep-alive connections, one request in flight on each."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from typing import cast


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the answer to the one before is complete.

    Attributes:
        num_answers: complete ones; only those with status 200 are waited for.
    """

    def __init__(self, requests: Sequence[bytes], first: int) -> None:
        """Nothing is sent yet.

        Args:
            requests: sent in turn, over and over.
            first: which of them is the first.
        """
        self.num_answers = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = islice(cycle(requests), first % len(requests), None)
        self._left = -1
        self._head = b""
        self.is_wanted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        """Count bytes until the answer is complete."""
        if self._left < 0:
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.ended.set_exception(RuntimeError(repr(head + rest[:200])))
                return
            self._head = b""
            at = head.lower().index(b"content-length:") + 15
            self._left = int(head[at:].split(b"\r\n", 1)[0])
            data = rest
        self._left -= len(data)
        if self._left == 0:
            self._left = -1
            self.num_answers += 1
            if self.is_wanted:
                self._transport.write(next(self._requests))
            else:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ends when it is not wanted any more."""
        if self.ended.done():
            return
        if self.is_wanted:
            self.ended.set_exception(exc or ConnectionError("the server closed the connection"))
        else:
            self.ended.set_result(None)


async def load(port: int, requests: Sequence[bytes], num: int, seconds: float) -> float:
    """Answers per second.

    Args:
        port: of this host.
        requests: whole ones, head and body, sent in turn.
        num: of connections.
        seconds: that are measured, a fifth of it later.
    """
    loop = asyncio.get_running_loop()
    pairs = [
        await loop.create_connection(partial(Connection, requests, first), "127.0.0.1", port)
        for first in range(num)
    ]
    connections = [each for _, each in pairs]
    await asyncio.sleep(seconds / 5)  # warm
    before = sum(each.num_answers for each in connections)
    begin_s = time.perf_counter()
    done, _ = await asyncio.wait(
        [each.ended for each in connections],
        timeout=seconds,
        return_when=asyncio.FIRST_COMPLETED,
    )
    for each in done:
        each.result()
    took_s = time.perf_counter() - begin_s
    rate = (sum(each.num_answers for each in connections) - before) / took_s
    for each in connections:
        each.is_wanted = False
    await asyncio.wait([each.ended for each in connections], timeout=10)
    return rate
