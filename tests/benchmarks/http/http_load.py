"""An HTTP/1.1 client that costs little: keep-alive connections, one request in flight on each."""

import asyncio
import time
from typing import cast


class Connection(asyncio.Protocol):
    """Sends the same request again as soon as its answer is complete.

    Attributes:
        num_answers: complete ones; only those with status 200 are waited for.
    """

    def __init__(self, request: bytes) -> None:
        self.num_answers = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._left = -1
        self._head = b""
        self.is_wanted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

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
                self._transport.write(self._request)
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


async def load(port: int, request: bytes, num: int, seconds: float) -> float:
    """Answers per second over so many connections."""
    loop = asyncio.get_running_loop()
    pairs = [
        await loop.create_connection(lambda: Connection(request), "127.0.0.1", port)
        for _ in range(num)
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
