"""What idle connections keep of the header blocks that they have sent."""

from pathlib import Path

import pytest

from tests.benchmarks.floods.serving import served
from tests.integration.grpc_server.hostile_headers import HOSTILE, hostile_connections

ROOT = Path(__file__).parents[4]
NUM_CONNECTIONS = 100
# 90 KB each, where 34, 22 and 70 are taken. Without a bound on what is kept of decoded blocks it
# would be 1.1 MB, with a dict of reset streams 109 KB, and with blocks of 64 KiB as much.
MOST_MB = 9
IN_EACH_RUN = ("malformed calls", "an unfinished block")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in IN_EACH_RUN else pytest.mark.slow)
        for kind in HOSTILE
        if kind != "all of these"
    ],
)
def test_connections_that_sent_hostile_headers_keep_little(kind: str) -> None:
    """In a process of its own, whose memory is the server's alone."""
    hostile = HOSTILE[kind]
    with served(ROOT) as server:
        first = hostile_connections(server.port, 1, hostile)
        before_mb = server.resident_mb
        idle = hostile_connections(server.port, NUM_CONNECTIONS, hostile)
        grown_mb = server.resident_mb - before_mb
        for connection in first + idle:
            connection.close()
    assert grown_mb < MOST_MB
