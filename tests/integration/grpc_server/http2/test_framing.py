"""The same conversation however its bytes are cut, padded and spread over frames."""

import asyncio
import itertools
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from h2.errors import ErrorCodes as Error
from h2.settings import SettingCodes as Setting
from hyperframe.frame import GoAwayFrame, PingFrame, SettingsFrame

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import LIMIT_S, soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host
    from tests.integration.grpc_server.raw_client import RawClient

BLOCK = f.plain(f.request_fields())
ENDS = f.END_HEADERS


def small_talk() -> bytes:
    """Ten calls, with everything between them that may stand there."""
    padded = f.frame(f.DATA, f.PADDED, 3, b"\x03" + f.message(b"3") + bytes(3))
    return b"".join(
        [
            f.wide(),
            f.call(1, payload=b"1"),
            f.headers(3),
            f.frame(f.PING, payload=b"pingpong"),
            padded,
            f.data(3, b"", is_last=True),
            f.header_frames(5, BLOCK, size=10),
            f.frame(f.UNKNOWN, 0xFF, 5, b"unknown"),
            f.body(5, f.message(b"5"), size=2),
            f.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20, 0xFE: 3}),
            f.headers(7, f.request_fields("Join")) + f.body(7, f.message(b"7") * 2, size=4),
            f.frame(f.PRIORITY, 0, 9, bytes(5)),
            f.call(9, "Chat", b"9"),
        ]
    )


EXPECTED = {1: [b"1"], 3: [b"3"], 5: [b"5"], 7: [b"77"], 9: [b"9"]}


async def converse(host: "Host", cuts: Iterable[int]) -> None:
    client = await host.dial(b"")
    await client.send_in_pieces(small_talk(), cuts)
    answers = {stream: (await client.answer(stream)).messages for stream in EXPECTED}
    assert answers == EXPECTED
    await client.settled()
    assert client.pongs[0] == b"pingpong"
    assert not client.goaways


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 10, 13, 100])
async def test_cut_into_equal_pieces(host: "Host", size: int) -> None:
    await host.serve()
    await converse(host, [size])


async def test_cut_at_random(host: "Host") -> None:
    await host.serve()
    dice = random.Random(2)
    for _ in range(50):
        await converse(host, [dice.choice([1, 2, 9, 50, 300]) for _ in range(97)])


async def test_large_messages_cut_at_random(host: "Host") -> None:
    await host.serve()
    dice = random.Random(3)
    for _ in range(12):
        client = await host.dial(f.wide())
        await client.settled()  # so that frames may be that large
        sizes = [dice.choice([1, 65_530, 65_531, 65_536, 100_000, 300_000]) for _ in range(4)]
        said = [dice.randbytes(size) for size in sizes]
        size = dice.choice([999, 16_384, 70_000, 1 << 20])
        sent = f.headers(1, f.request_fields("Chat"))
        sent += f.body(1, b"".join(map(f.message, said)), size=size)
        sent += f.call(3, payload=b"after")
        cuts = [dice.choice([5000, 20_000, 65_536, 200_000]) for _ in range(31)]
        writing = asyncio.create_task(client.send_in_pieces(sent, cuts))
        assert (await client.answer(1)).messages == said
        assert (await client.answer(3)).messages == [b"after"]
        await writing


async def test_many_connections_at_once(host: "Host") -> None:
    await host.serve()
    clients = await asyncio.gather(*[host.dial() for _ in range(200)])
    calls = [client.ask(f.call(1, payload=b"%d" % number)) for number, client in enumerate(clients)]
    answers = await soon(asyncio.gather(*calls))
    assert [answer.messages for answer in answers] == [[b"%d" % n] for n in range(200)]


async def test_a_block_cut_in_two_anywhere(host: "Host") -> None:
    await host.serve()
    client = await host.dial(f.wide())
    streams = range(1, 2 * len(BLOCK) + 2, 2)
    for cut, stream in enumerate(streams):
        first = f.frame(f.HEADERS, 0, stream, BLOCK[:cut])
        second = f.frame(f.CONTINUATION, ENDS, stream, BLOCK[cut:])
        await client.send(first, second, f.body(stream, f.message(b"%d" % cut)))
    for cut, stream in enumerate(streams):
        assert (await client.answer(stream)).messages == [b"%d" % cut]


async def test_the_end_of_a_stream_stands_in_the_first_of_its_header_frames(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    block = f.plain(f.request_fields("Join"))
    answer = await client.ask(f.header_frames(1, block, size=50, is_last=True))
    assert answer.messages == [b""]


PADS = [b"", b"\x00", bytes(255)]


@pytest.mark.parametrize(
    ("pad", "has_priority"), list(itertools.product(PADS, [False, True])), ids=str
)
async def test_padding_and_priority(host: "Host", pad: bytes, has_priority: bool) -> None:
    await host.serve()
    client = await host.dial()
    flags = ENDS | f.PADDED | (f.HAS_PRIORITY if has_priority else 0)
    head = bytes([len(pad)]) + (b"\x80\x00\x00\x03\x10" if has_priority else b"") + BLOCK + pad
    pieces = [f.message(b"padded")[:3], b"", f.message(b"padded")[3:]]
    padded = [f.frame(f.DATA, f.PADDED, 1, bytes([len(pad)]) + each + pad) for each in pieces]
    last = f.frame(f.DATA, f.PADDED | f.END_STREAM, 1, bytes([len(pad)]) + pad)
    answer = await client.ask(f.frame(f.HEADERS, flags, 1, head), *padded, last)
    assert answer.messages == [b"padded"]
    assert await client.goes_on()


async def test_priority_without_padding(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    head = f.frame(f.HEADERS, ENDS | f.HAS_PRIORITY, 1, bytes(5) + BLOCK)
    assert (await client.ask(head, f.body(1, f.message(b"x")))).messages == [b"x"]


async def test_flags_that_mean_nothing_are_ignored(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.frame(f.PING, 0xFE, 0, b"oddflags"), f.frame(f.SETTINGS, 0xFE))
    sent = f.frame(f.HEADERS, 0xD2 | ENDS, 1, BLOCK)
    sent += f.frame(f.DATA, 0xF6 | f.END_STREAM, 1, f.message(b"x"))
    assert (await client.ask(sent)).messages == [b"x"]


async def test_the_reserved_bit_is_ignored(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    sent = f.frame(f.HEADERS, ENDS, 1 << 31 | 1, BLOCK)
    sent += f.frame(f.DATA, f.END_STREAM, 1 << 31 | 1, f.message(b"x"))
    assert (await client.ask(sent)).messages == [b"x"]
    sent = f.frame(f.WINDOW_UPDATE, 0, 0, b"\x80\x00\x00\x01") + f.call(3)
    assert (await client.ask(sent, stream=3)).status == 0


async def test_each_settings_frame_is_acknowledged_once(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.settings({}) * 3, f.settings({Setting.ENABLE_PUSH: 0, 0xABC: 1}))
    await client.settled()
    ours = [each for each in client.frames if isinstance(each, SettingsFrame)]
    assert [list(each.flags) for each in ours].count(["ACK"]) == 5
    assert client.frames[0] is ours[0]


async def test_the_client_says_goaway(host: "Host") -> None:
    # It will open no stream more, but wants the answers of those it has.
    await host.serve()
    client = await host.dial()
    await client.send(f.call(1, "Hold", b"x"), f.frame(f.GOAWAY, 0, 0, bytes(8) + b"bye"))
    await soon(host.probe.began.get())
    host.probe.gate.set()
    assert (await client.answer(1)).messages == [b"x"]


@pytest.mark.parametrize("method", ["Hold", "Gated"])
async def test_the_client_hangs_up(host: "Host", method: str) -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.call(1, method))
    await soon(host.probe.began.get())
    client.hang_up()
    await client.goaway()
    assert await soon(host.probe.ended.get()) == "cancelled"


def pings_of(client: "RawClient") -> list[bytes]:
    """What the server wants to hear again."""
    pings = [each for each in client.frames if isinstance(each, PingFrame)]
    return [each.opaque_data for each in pings if "ACK" not in each.flags]


async def test_how_a_server_stops(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.send(f.call(1, "Hold", b"held"))
    await soon(host.probe.began.get())
    await client.settled()
    client.is_polite = False
    stopping = asyncio.create_task(host.server.stop(LIMIT_S))
    await client.until(lambda: bool(pings_of(client)))
    last_streams = [each.last_stream_id for each in client.frames if isinstance(each, GoAwayFrame)]
    assert last_streams == [2**31 - 1]
    # On its way when the server said so.
    assert (await client.ask(f.call(3, payload=b"late"), stream=3)).messages == [b"late"]
    await client.send(f.frame(f.PING, f.ACK, payload=pings_of(client)[0]))
    await client.until(lambda: len(client.goaways) == 2)
    last = [each for each in client.frames if isinstance(each, GoAwayFrame)][-1]
    assert (last.last_stream_id, client.goaways) == (3, [Error.NO_ERROR] * 2)
    refused = await client.ask(f.call(5, payload=b"too late"), stream=5)
    assert refused.reset == Error.REFUSED_STREAM
    host.probe.gate.set()
    assert (await client.answer(1)).messages == [b"held"]
    assert await client.goaway() == Error.NO_ERROR
    await soon(stopping)


async def test_a_server_stops_though_its_ping_is_not_answered(host: "Host") -> None:
    await host.serve()
    client = await host.dial()
    await client.settled()
    client.is_polite = False
    stopping = asyncio.create_task(host.server.stop(0.05))
    assert await client.goaway() == Error.NO_ERROR
    await soon(stopping)
