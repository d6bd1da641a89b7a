"""Requests as bytes, which no client library would send."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

TENSOR: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


async def send(fleet: "Fleet", *pieces: bytes) -> tuple[int, Any]:
    """Status and body of the answer to bytes; 0 where the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.http_port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(30):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
            return int(head.split()[1]), json.loads(await reader.readexactly(length) or b"{}")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, None
    finally:
        writer.close()


def post(body: bytes, *fields: str, length: int | None = None) -> bytes:
    """An inference request."""
    size = len(body) if length is None else length
    lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: a", f"Content-Length: {size}", *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def document(**changes: Any) -> bytes:
    """A request of one tensor, with changes of that."""
    tensor = {key: value for key, value in (TENSOR | changes).items() if value is not None}
    return json.dumps({"inputs": [tensor]}).encode()
