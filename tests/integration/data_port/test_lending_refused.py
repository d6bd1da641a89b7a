"""Peers that speak of memory which nobody lent, or of places where no request can lie."""

import asyncio
import logging
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
from services.contracts.transport.lent_memory import DESCRIPTORS, PLACE
from services.gateway.upstream.arena import RequestArena, slot_of
from services.gateway.upstream.arena_link import ArenaLink, lend_arena
from services.replica.transport.data_server import GatewayConnection
from tests.integration.data_port.lending import (
    ARENA_BYTES,
    PATIENCE_S,
    refusal_of,
    requested,
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
    """A peer that lends memory, and speaks of it as a test says."""

    peer: Any
    arena: RequestArena
    other: Any

    async def lend(self) -> ArenaLink:
        """Lends the arena, as a gateway does."""
        link = await lend_arena(self.arena, self.connection, self._ask)
        assert link is not None
        return link

    @property
    def connection(self) -> Any:
        """Its end of the data connection."""
        return self.peer.writer.get_extra_info("socket")

    async def _ask(self, payload: bytes) -> None:
        self.peer.writer.write(wire(Kind.LEND, 1, payload=payload))
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
async def lender(port, arena, monkeypatch: pytest.MonkeyPatch) -> Lender:
    """Greeted, at a replica that takes 100,000 bytes and answers with what it got."""
    monkeypatch.setattr(GatewayConnection, "max_payload_bytes", 100_000)
    address = await port.serve(family="unix", token=TOKEN)
    other = await port.connect(address, token=TOKEN, arena=arena)
    peer = await port.dial_raw(address)
    peer.writer.write(wire(Kind.HELLO, 0, encode_hello(TOKEN)))
    lender = Lender(peer, arena, other)
    hello = await lender.frame()
    assert hello is not None
    assert hello.kind is Kind.HELLO
    return lender


async def test_a_place_in_lent_memory_is_a_request(lender: Lender) -> None:
    link = await lender.lend()
    payload = requested(lender.arena, 70_000)
    slot = slot_of(payload)
    assert slot is not None
    assert link.lend(slot)
    assert not link.lend(slot)
    lender.ask(2, PLACE.pack(slot.begin, 70_000))
    assert await lender.frame() == Frame(Kind.OK, 2, b"", payload)
    del payload, slot
    await until_free(lender.arena)


_PLACES = {
    "outside": (PLACE.pack(ARENA_BYTES - 5, 6), f"is at {ARENA_BYTES - 5} and has 6 bytes"),
    "far outside": (PLACE.pack(2**64 - 1, 6), "and has 6 bytes, in memory of"),
    "empty": (PLACE.pack(0, 0), "is at 0 and has 0 bytes"),
    "too large": (PLACE.pack(0, 100_001), "has 100001 bytes, at most 100000 are accepted"),
    "huge": (PLACE.pack(0, 2**64 - 1), "bytes, at most 100000 are accepted"),
    "no place": (b"", "shared memory that is not registered"),
    "half a place": (PLACE.pack(0, 100)[:8], "shared memory that is not registered"),
    "a request": (bytes(70_000), "shared memory that is not registered"),
}


@pytest.mark.parametrize("fault", _PLACES)
async def test_a_place_where_nothing_can_be_closes_the_connection(
    lender: Lender, fault: str
) -> None:
    place, reason = _PLACES[fault]
    link = await lender.lend()
    lender.ask(2, place)
    assert reason in await lender.refusal()
    await _only_that_link_is_over(lender, link)


async def _only_that_link_is_over(lender: Lender, link: ArenaLink | None = None) -> None:
    if link is not None:
        link.close()
    assert len(lender.arena.consumers) == 1
    payload = requested(lender.arena, 90_000)
    assert await lender.other.infer(payload) == payload
    del payload
    await until_free(lender.arena)


async def test_a_request_without_lending_first_closes_the_connection(lender: Lender) -> None:
    lender.ask(2, PLACE.pack(0, 100))
    assert "shared memory that is not registered" in await lender.refusal()
    await _only_that_link_is_over(lender)


async def test_an_id_in_use_gives_its_slot_back_with_the_connection(lender: Lender) -> None:
    link = await lender.lend()
    slots = [slot_of(requested(lender.arena, 70_000)) for _ in range(2)]
    for slot in slots:
        assert slot is not None
        assert link.lend(slot)
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
    await _only_that_link_is_over(lender, link)


async def test_a_broken_request_is_answered_and_gives_its_slot_back(lender: Lender) -> None:
    link = await lender.lend()
    slot = slot_of(requested(lender.arena, 70_000))
    assert slot is not None
    assert link.lend(slot)
    lender.ask(2, PLACE.pack(slot.begin, 70_000), meta=b"\xff")
    frame = await lender.frame()
    assert frame is not None
    assert (frame.kind, frame.request_id) == (Kind.ERROR, 2)
    del slot
    await until_free(lender.arena)


_LENT = {
    "nothing": (b"", "LEND of 0 bytes, wanted 8; run gateway and replica of one release"),
    "an id": (bytes(16), "LEND of 16 bytes"),
    "much": (b"x" * 4000, "LEND of 4000 bytes"),
    "no descriptors": (DESCRIPTORS.pack(-1, -1), "shared memory cannot be opened"),
    "closed ones": (DESCRIPTORS.pack(2**31 - 1, 2**31 - 1), "shared memory cannot be opened"),
}


@pytest.mark.parametrize("fault", _LENT)
async def test_what_is_no_memory_is_answered_with_an_error(lender: Lender, fault: str) -> None:
    payload, reason = _LENT[fault]
    assert reason in await refusal_of(lender.peer, payload)
    link = await lender.lend()
    slot = slot_of(requested(lender.arena, 70_000))
    assert slot is not None
    assert link.lend(slot)
    lender.ask(2, PLACE.pack(slot.begin, 70_000))
    assert await lender.frame() == Frame(Kind.OK, 2, b"", bytes(slot))


async def test_nobody_lends_to_a_replica_of_tcp_alone(port, arena) -> None:
    peer = await port.dial_raw(await port.serve(token=TOKEN))
    peer.writer.write(wire(Kind.HELLO, 0, encode_hello(TOKEN)))
    assert (await peer.read_frame()).kind is Kind.HELLO
    reason = await refusal_of(peer, DESCRIPTORS.pack(arena.descriptor, arena.descriptor))
    assert "shared memory cannot be opened" in reason
