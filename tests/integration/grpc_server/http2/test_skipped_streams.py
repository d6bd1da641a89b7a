"""HEADERS of a lower stream: one that was skipped (RFC 9113, 5.1.1), or open before (5.1)."""

from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error

from tests.integration.grpc_server import frames as f

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

SKIPPED, CLOSED = Error.PROTOCOL_ERROR, Error.STREAM_CLOSED
OPEN = f.request_fields("Gated")
RESET = f.headers(9, OPEN) + f.rst_stream(9)
# One stream is open, the next one skipped, a hundred times.
GAPS = b"".join(f.headers(stream, OPEN) for stream in range(11, 411, 4))


@pytest.mark.parametrize(
    ("before", "stream", "code"),
    [
        pytest.param(f.headers(3, OPEN), 1, SKIPPED, id="the first of all"),
        pytest.param(f.headers(9, OPEN), 7, SKIPPED, id="the one below"),
        pytest.param(f.headers(9, OPEN) + f.headers(11, OPEN), 3, SKIPPED, id="far below"),
        pytest.param(RESET, 7, SKIPPED, id="below one that is closed"),
        pytest.param(RESET, 9, CLOSED, id="one that is closed"),
        pytest.param(RESET + f.headers(99, OPEN), 9, CLOSED, id="a closed one below a gap"),
        pytest.param(f.headers(9, OPEN) + f.data(7, b"") + f.rst_stream(7), 7, SKIPPED, id="DATA"),
        pytest.param(GAPS, 405, SKIPPED, id="the last of many gaps"),
        # No more than the last gaps are kept: it is closed, and was not open before.
        pytest.param(GAPS, 13, CLOSED, id="the first of many gaps"),
    ],
)
async def test_headers_of_a_lower_stream(
    host: "Host", before: bytes, stream: int, code: Error
) -> None:
    await host.serve()
    client, other = await host.dial(), await host.dial()
    await client.send(before)
    await client.settled()
    await client.send(f.headers(stream, is_last=True))
    assert await client.goaway() == code
    assert await other.goes_on()


async def test_trailers_of_streams_beside_a_gap(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    trailers = [("a", "b")]
    for stream in (5, 11):
        await client.send(f.headers(stream), f.body(stream, f.message(b"x"), is_last=False))
    for stream in (5, 11):
        answer = await client.ask(f.headers(stream, trailers, is_last=True), stream=stream)
        assert (answer.status, answer.messages) == (0, [b"x"])
    assert await client.goes_on(13)
