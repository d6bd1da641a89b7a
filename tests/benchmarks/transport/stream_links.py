"""Length-prefixed frames with asyncio's StreamReader and StreamWriter on a unix socket."""

import asyncio
import itertools

from .frame_links import HEADER
from .payloads import Handler

_LIMIT_BYTES = 1 << 20
# A server that nobody holds is collected, and stops.
_SERVERS: list[asyncio.Server] = []


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    size, number = HEADER.unpack(await reader.readexactly(HEADER.size))
    return number, await reader.readexactly(size)


def _write_frame(writer: asyncio.StreamWriter, number: int, payload: bytes) -> None:
    writer.writelines((HEADER.pack(len(payload), number), payload))


async def serve(handler: Handler, address: str) -> None:
    """Serves frames, one task for each request."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(writer: asyncio.StreamWriter, number: int, request: bytes) -> None:
        _write_frame(writer, number, await handler(request))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            task = asyncio.create_task(one(writer, *await _read_frame(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    _SERVERS.append(await asyncio.start_unix_server(connected, address, limit=_LIMIT_BYTES))


class StreamsLink:
    """One connection; answers are matched by correlation id."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._ids = itertools.count()
        self._task = asyncio.create_task(self._read(reader))

    async def call(self, request: bytes) -> bytes:
        """Forwards the request's bytes in one frame."""
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        _write_frame(self._writer, number, request)
        await self._writer.drain()
        return await future

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            number, reply = await _read_frame(reader)
            self._waiting.pop(number).set_result(reply)


async def connect(address: str) -> StreamsLink:
    """Opens the connection."""
    return StreamsLink(*await asyncio.open_unix_connection(address, limit=_LIMIT_BYTES))
