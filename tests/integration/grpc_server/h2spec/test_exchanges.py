"""h2spec's cases that look at more than an end: preface, SETTINGS, PING and windows."""

from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting
from hyperframe.frame import SettingsFrame

from services.grpc_server.limits import Limits
from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.h2spec.conversations import CALL, NO_WINDOW

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host


async def test_the_first_frame_of_the_server_is_settings(host: "Host") -> None:
    """http2/3.5/1, 6.5.3/2 and 6.7/1: and it acknowledges the client's, and each PING."""
    await host.serve()
    client = await host.dial()
    await client.ping()
    settings = [each for each in client.frames if isinstance(each, SettingsFrame)]
    assert client.frames[0] is settings[0]
    assert ["ACK" in each.flags for each in settings] == [False, True]


async def test_another_preface_is_not_answered_by_frames(host: "Host") -> None:
    """http2/3.5/2."""
    await host.serve()
    client = await host.dial(b"INVALID CONNECTION PREFACE\r\n\r\n")
    assert (await client.rest())[:4] in (b"", b"HTTP")


async def test_a_ping_that_is_an_answer_is_not_answered(host: "Host") -> None:
    """http2/6.7/2."""
    await host.serve()
    client = await host.dial()
    await client.send(f.frame(f.PING, f.ACK, 0, b"\xffinvalid"[:8]))
    await client.ping()
    assert len(client.pongs) == 1


async def test_more_streams_than_were_announced(host: "Host") -> None:
    """http2/5.1.2/1."""
    await host.serve(Limits(max_streams=1))
    client = await host.dial()
    await client.send(f.call(1, "Hold"))
    assert (await client.ask(f.call(3), stream=3)).reset == Error.REFUSED_STREAM


@pytest.mark.parametrize(
    ("first", "then", "sizes"),
    [
        (f.settings({Setting.INITIAL_WINDOW_SIZE: 1}), b"", [1]),
        (NO_WINDOW, f.settings({Setting.INITIAL_WINDOW_SIZE: 1}), [1]),
        (
            f.settings({Setting.INITIAL_WINDOW_SIZE: 3}),
            f.settings({Setting.INITIAL_WINDOW_SIZE: 2}) + f.window_update(1, 2),
            [3, 1],
        ),
        (f.frame(f.SETTINGS, payload=bytes.fromhex("000400000064000400000001")), b"", [1]),
    ],
    ids=["http2/6.9.1/1", "http2/6.9.2/1", "http2/6.9.2/2", "http2/6.5.3/1"],
)
async def test_no_more_is_sent_than_windows_allow(
    host: "Host", first: bytes, then: bytes, sizes: list[int]
) -> None:
    await host.serve()
    client = await host.dial()
    await client.send(first, CALL)
    if first != NO_WINDOW:
        await client.until(lambda: client.seen(1).sizes == sizes[:1])
    await client.settled()
    await client.send(then)
    await client.until(lambda: client.seen(1).sizes == sizes)
    await client.settled()
    assert client.seen(1).sizes == sizes
