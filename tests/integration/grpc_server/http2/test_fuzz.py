"""Thousands of conversations with something broken in each: nothing may get out of hand."""

import asyncio
import logging
import random
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from h2.settings import SettingCodes as Setting

from tests.integration.grpc_server import frames as f
from tests.integration.grpc_server.probe import soon

if TYPE_CHECKING:
    from tests.integration.grpc_server.conftest import Host

NUM_CONVERSATIONS = 1000
AT_ONCE = 25
BLOCK = f.plain(f.request_fields())
NUMBERS = [0, 1, 2, 5, 255, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1]
GZIPPED = f.request_fields("Echo", [("grpc-encoding", "gzip"), ("grpc-timeout", "1S")])

# Frames of conversations in which nothing is wrong; mutations make the rest.
CONVERSATIONS: list[list[bytes]] = [
    [f.call(1, payload=b"one"), f.call(3, "Chat", b"two"), f.call(5, "Hold", b"three")],
    [f.headers(1), f.data(1, f.message(b"abc")[:4]), f.data(1, f.message(b"abc")[4:])],
    [f.headers(1, f.request_fields("Join")), f.body(1, f.message(bytes(70_000)) * 2)],
    [f.headers(1, f.request_fields("Gated")), f.body(1, f.message(b"x") * 9, is_last=False)],
    [f.call(1, "Blow", bytes(200_000)), f.window_update(1, 1000), f.window_update(0, 100_000)],
    [f.call(1, "Letters"), f.settings({Setting.INITIAL_WINDOW_SIZE: 10}), b""],
    [f.header_frames(1, BLOCK, size=40), f.body(1, f.message(b"x")), f.rst_stream(1)],
    [f.headers(1, GZIPPED), f.body(1, f.message(b"not gzip", flag=1)), f.frame(f.UNKNOWN)],
    [f.headers(1), f.headers(1, [("checksum", "1")], is_last=True), f.frame(f.PRIORITY, 0, 1)],
    [f.frame(f.DATA, f.PADDED, 1, b"\x02abc\x00\x00"), f.frame(f.PING, payload=bytes(8))],
    [f.settings({Setting.MAX_FRAME_SIZE: 20_000}), f.call(1, "Deaf"), f.frame(f.GOAWAY, 0, 0)],
]


def flipped(dice: random.Random, sent: bytearray) -> None:
    """One bit is another."""
    sent[dice.randrange(len(sent))] ^= 1 << dice.randrange(8)


def overwritten(dice: random.Random, sent: bytearray) -> None:
    """A number that is at some edge, somewhere."""
    number = struct.pack("!I", dice.choice(NUMBERS))[dice.randrange(4) :]
    at = dice.randrange(len(sent))
    sent[at : at + len(number)] = number


def cut_out(dice: random.Random, sent: bytearray) -> None:
    """A part is missing."""
    at = dice.randrange(len(sent))
    del sent[at : at + dice.choice([1, 3, 9, 50])]


def repeated(dice: random.Random, sent: bytearray) -> None:
    """A part comes twice."""
    at = dice.randrange(len(sent))
    sent[at:at] = sent[at : at + dice.choice([1, 9, 100])]


def inserted(dice: random.Random, sent: bytearray) -> None:
    """A frame of any kind, with anything in it, somewhere."""
    at, size = dice.randrange(len(sent)), dice.choice([0, 1, 4, 5, 6, 8, 30])
    kind, flags, stream = dice.randrange(12), dice.randrange(256), dice.choice([0, 1, 2, 3, 7])
    sent[at:at] = f.frame(kind, flags, stream, dice.randbytes(size))


def cut_off(dice: random.Random, sent: bytearray) -> None:
    """The rest never comes."""
    del sent[dice.randrange(len(sent)) :]


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flipped,
    overwritten,
    cut_out,
    repeated,
    inserted,
    cut_off,
]


def conversation(dice: random.Random) -> bytes:
    """A greeting and frames, of which some are broken or in another order."""
    frames = [each for part in dice.sample(CONVERSATIONS, 2) for each in part]
    if dice.random() < 0.5:
        dice.shuffle(frames)
    sent = bytearray(b"".join(frames))
    for _ in range(dice.choice([0, 1, 1, 2, 5])):
        if sent:
            dice.choice(MUTATIONS)(dice, sent)
    greeting = bytearray(f.wide() if dice.random() < 0.7 else f.greeting())
    if dice.random() < 0.05:
        dice.choice(MUTATIONS)(dice, greeting)
    return bytes(greeting + sent)


async def one(host: "Host", seed: int) -> None:
    """One conversation on a connection of its own, to the server's last word."""
    dice = random.Random(seed)
    client = await host.dial(b"")
    sent = conversation(dice)
    fine = [9, 1, 40] if len(sent) < 3000 else [5000]
    cuts = dice.choice([[1 << 20], [3000, 16_000, 100], fine])
    sending = asyncio.create_task(client.send_in_pieces(sent, cuts))
    if dice.random() < 0.5:
        await soon(sending)
        client.hang_up()
        await soon(client.rest())
    else:
        # It goes away while its bytes are being read and its calls answered.
        await asyncio.sleep(0)
    await soon(sending)
    client.close()


@pytest.mark.parametrize("seed", range(NUM_CONVERSATIONS // 500))
async def test_broken_conversations(
    host: "Host", caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    await host.serve()
    host.probe.gate.set()
    other = await host.dial()
    first = 500 * seed
    with caplog.at_level(logging.WARNING):
        for begin in range(first, first + 500, AT_ONCE):
            await asyncio.gather(*[one(host, number) for number in range(begin, begin + AT_ONCE)])
            stream = 2 * (begin - first) + 1
            answer = await other.ask(f.call(stream, payload=b"others"), stream=stream)
            assert answer.messages == [b"others"]
    assert not host.errors
    # asyncio itself may say that somebody wrote to a peer that is gone.
    said = [each.getMessage() for each in caplog.records if each.name.startswith("services")]
    assert said == []


async def test_nothing_is_left_of_broken_conversations(host: "Host") -> None:
    # Calls of connections that are gone have ended, all of them.
    await host.serve()
    for seed in range(0, 200, AT_ONCE):
        await asyncio.gather(*[one(host, number) for number in range(seed, seed + AT_ONCE)])
    while len(asyncio.all_tasks()) > 1:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        done, _ = await soon(asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED))
        assert done
    num_began = host.probe.began.qsize()
    assert num_began
    assert host.probe.ended.qsize() >= num_began
