"""What comes behind a request on its connection: other protocols, bodies, next requests."""

import asyncio
import json
from typing import TYPE_CHECKING

from tests.integration.gateway.http.raw_requests import document, post, send

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_an_offer_of_another_protocol_is_not_taken(http_fleet: "Fleet") -> None:
    """As Java's client makes it: with the body of a request behind it, on a connection it keeps."""
    reader, writer = await asyncio.open_connection("127.0.0.1", http_fleet.gateway.http_port)
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    for _ in range(3):
        writer.write(post(document(), *offer))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200")
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        assert json.loads(await reader.readexactly(length))["outputs"]
    writer.close()


async def test_what_looks_like_an_offer_in_a_body_stays_there(http_fleet: "Fleet") -> None:
    raw = b"\r\nUpgrade:  \r\n\r\n"
    head = document(data=None, parameters={"binary_data_size": len(raw)})
    head = head[:-1] + b',"parameters":{"binary_data_output":true}}'
    request = post(head + raw, f"Inference-Header-Content-Length: {len(head)}")
    begins = request.index(b"\r\n\r\n") + 3
    reader, writer = await asyncio.open_connection("127.0.0.1", http_fleet.gateway.http_port)
    writer.write(request[:begins])
    # In a segment of its own: nothing says that the gateway has read the first one.
    await asyncio.sleep(0.2)
    writer.write(request[begins:])
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert answer.startswith("HTTP/1.1 200")
    length = int(answer.lower().partition("content-length: ")[2].partition("\r\n")[0])
    assert (await reader.readexactly(length)).endswith(raw)
    writer.close()


async def test_only_so_many_requests_wait_on_a_connection(http_fleet: "Fleet") -> None:
    status, answer = await send(http_fleet, b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
    assert (status, answer["error"]) == (429, "more than 16 requests wait on this connection")


async def test_a_large_body_before_a_pipelined_head_is_no_head(http_fleet: "Fleet") -> None:
    body = document() + b" " * 100_000
    status, _ = await send(http_fleet, post(body)[:-90_000], b" " * 90_000 + post(b"")[:20])
    assert status == 200


async def test_pipelined_requests_are_answered_in_order(http_fleet: "Fleet") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", http_fleet.gateway.http_port)
    writer.write(post(document()) * 3 + b"GET /v2/none HTTP/1.1\r\nHost: a\r\n\r\n")
    statuses = []
    for _ in range(4):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        statuses.append(int(head.split()[1]))
    assert statuses == [200, 200, 200, 404]
    writer.close()
