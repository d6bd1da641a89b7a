"""Peers that speak of memory which nobody lent, or of places where no request can lie."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from services.contracts.transport.frames import (
    Frame,
    InferFrame,
    Kind,
    decode_error,
    encode_hello,
    encode_infer,
)
from services.contracts.transport.lent_memory import PLACE
from services.gateway.upstream.arena import RequestArena, slot_of
from services.gateway.upstream.arena_link import ArenaLink
from tests.integration.data_port.lending import (
    ARENA_BYTES,
    PATIENCE_S,
    open_link,
    refusal_of,
    requested,
    until,
    until_free,
    wire,
)

TOKEN = bytes(range(32))
INFER_META = encode_infer(InferFrame(b""))


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Errors that pytest keeps refer to all that they are about."""
    caplog.set_level(logging.ERROR)


@dataclass
class Lender:
    """A peer that lent memory, and speaks of it as a test says."""

    peer: Any
    link: ArenaLink
    arena: RequestArena
    other: Any

    async def lend(self) -> None:
        """Claims the link, as a gateway does."""
        self.peer.writer.write(wire(Kind.LEND, 1, payload=self.link.link_id))
        assert await self.frame() == Frame(Kind.OK, 1, b"", b"")

    async def frame(self) -> Frame | None:
        """The replica's next frame."""
        frame: Frame | None = await asyncio.wait_for(self.peer.read_frame(), PATIENCE_S)
        return frame

    def ask(self, request_id: int, payload: bytes, meta: bytes = INFER_META) -> None:
        """Sends INFER_LENT."""
        self.peer.writer.write(wire(Kind.INFER_LENT, request_id, meta, payload))

    async def refusal(self) -> str:
        """Why the connection was closed."""
        frame = await self.frame()
        assert frame is not None
        assert (frame.kind, frame.request_id) == (Kind.ERROR, 0)
        with suppress(ConnectionError):
            assert await self.frame() is None
        return str(decode_error(frame))


@pytest.fixture
async def lender(port, arena) -> AsyncIterator[Lender]:
    """Greeted, at a replica that takes 100,000 bytes and answers with what it got."""
    address = await port.serve(family="unix", token=TOKEN, max_payload_bytes=100_000)
    other = await port.connect(address, token=TOKEN, arena=arena)
    peer = await port.dial_raw(address)
    peer.writer.write(wire(Kind.HELLO, 0, encode_hello(TOKEN)))
    link = await open_link(arena, address, TOKEN)
    assert link is not None
    lender = Lender(peer, link, arena, other)
    hello = await lender.frame()
    assert hello is not None
    assert hello.kind is Kind.HELLO
    yield lender
    link.close()


async def test_a_place_in_lent_memory_is_a_request(lender: Lender) -> None:
    await lender.lend()
    payload = requested(lender.arena, 70_000)
    slot = slot_of(payload)
    assert slot is not None
    assert lender.link.lend(slot)
    assert not lender.link.lend(slot)
    lender.ask(2, PLACE.pack(slot.begin, 70_000))
    assert await lender.frame() == Frame(Kind.OK, 2, b"", payload)
    del payload, slot
    await until_free(lender.arena)


_PLACES = {
    "outside": (PLACE.pack(ARENA_BYTES - 5, 6), f"lies at {ARENA_BYTES - 5} and has 6 bytes"),
    "far outside": (PLACE.pack(2**64 - 1, 6), "and has 6 bytes, in memory of"),
    "empty": (PLACE.pack(0, 0), "lies at 0 and has 0 bytes"),
    "too large": (PLACE.pack(0, 100_001), "has 100001 bytes, at most 100000 are taken"),
    "huge": (PLACE.pack(0, 2**64 - 1), "bytes, at most 100000 are taken"),
    "no place": (b"", "in memory that was not lent"),
    "half a place": (PLACE.pack(0, 100)[:8], "in memory that was not lent"),
    "a request": (bytes(70_000), "in memory that was not lent"),
}


@pytest.mark.parametrize("fault", _PLACES)
async def test_a_place_where_nothing_can_be_closes_the_connection(
    lender: Lender, fault: str
) -> None:
    place, reason = _PLACES[fault]
    await lender.lend()
    lender.ask(2, place)
    assert reason in await lender.refusal()
    await _only_that_link_is_over(lender)


async def _only_that_link_is_over(lender: Lender) -> None:
    await until(lambda: lender.link not in lender.arena.consumers)
    assert len(lender.arena.consumers) == 1
    payload = requested(lender.arena, 90_000)
    assert await lender.other.infer(payload) == payload
    del payload
    await until_free(lender.arena)


async def test_a_request_without_lending_first_closes_the_connection(lender: Lender) -> None:
    """Even if something was given at the memory port."""
    lender.ask(2, PLACE.pack(0, 100))
    assert "in memory that was not lent" in await lender.refusal()
    lender.link.close()
    await _only_that_link_is_over(lender)


async def test_an_id_in_use_gives_its_slot_back_with_the_connection(lender: Lender) -> None:
    await lender.lend()
    slots = [slot_of(requested(lender.arena, 70_000)) for _ in range(2)]
    for slot in slots:
        assert slot is not None
        assert lender.link.lend(slot)
    lender.peer.writer.write(
        b"".join(
            wire(Kind.INFER_LENT, 3, INFER_META, PLACE.pack(slot.begin, 70_000))
            for slot in slots
            if slot is not None
        )
    )
    assert "request id 3 is in use" in await lender.refusal()
    slots.clear()
    del slot
    await _only_that_link_is_over(lender)


async def test_a_broken_request_is_answered_and_gives_its_slot_back(lender: Lender) -> None:
    await lender.lend()
    slot = slot_of(requested(lender.arena, 70_000))
    assert slot is not None
    assert lender.link.lend(slot)
    lender.ask(2, PLACE.pack(slot.begin, 70_000), meta=b"\xff")
    frame = await lender.frame()
    assert frame is not None
    assert (frame.kind, frame.request_id) == (Kind.ERROR, 2)
    del slot
    await until_free(lender.arena)


@pytest.mark.parametrize("link_id", [b"", bytes(16), b"x" * 4000])
async def test_an_unknown_link_is_answered_with_an_error(lender: Lender, link_id: bytes) -> None:
    lender.peer.writer.write(wire(Kind.LEND, 7, payload=link_id) + wire(Kind.PING, 8))
    error, pong = await lender.frame(), await lender.frame()
    assert error is not None
    assert (error.kind, error.request_id) == (Kind.ERROR, 7)
    assert "nothing was lent under that id" in str(decode_error(error))
    assert pong == Frame(Kind.PONG, 8, b"", b"")
    await lender.lend()


async def test_a_link_is_claimed_once(port, lender: Lender) -> None:
    await lender.lend()
    refusal = await refusal_of(port, port.server.addresses[0], TOKEN, lender.link)
    assert "nothing was lent under that id" in refusal
    payload = requested(lender.arena, 70_000)
    assert await lender.other.infer(payload) == payload


async def test_nobody_lends_to_a_replica_of_tcp_alone(port, arena) -> None:
    other = await port.serve(family="unix", token=TOKEN)
    link = await open_link(arena, other, TOKEN)
    assert link is not None
    refusal = await refusal_of(port, await port.serve(token=TOKEN), TOKEN, link)
    assert "nothing was lent under that id" in refusal
    link.close()
    await until(lambda: not arena.consumers)
