"""Requests that a replica reads where they lie: in place, and back however they end."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from services.contracts.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    NotReadyError,
    OverloadedError,
)
from services.contracts.transport.frames import Frame, InferFrame, Kind
from services.contracts.transport.large_buffer import LargeBuffer
from services.contracts.transport.lent_memory import MAX_SLOT_BYTES, UNIT_BYTES
from services.gateway.upstream.arena import RequestArena
from services.gateway.upstream.replica_connection import connect
from services.replica.transport.data_server import GatewayConnection
from tests.integration.data_port.lending import (
    ARENA_BYTES,
    PATIENCE_S,
    SIZE,
    Holding,
    failure_of,
    requested,
    until,
    until_free,
)

TOKEN = bytes(range(32))


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A gateway collects garbage rarely: no slot may wait for that."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """What replicas were sent of requests, in order."""
    seen: list[Kind] = []
    receive = GatewayConnection.frame_received

    def watched(self: GatewayConnection, frame: Frame) -> None:
        if frame.kind in (Kind.INFER, Kind.INFER_LENT):
            seen.append(frame.kind)
        receive(self, frame)

    monkeypatch.setattr(GatewayConnection, "frame_received", watched)
    return seen


async def lent(port: Any, arena: RequestArena, handler: Any) -> Any:
    """A connection to a new replica that was given the arena."""
    address = await port.serve(handler, family="unix", token=TOKEN)
    return await port.connect(address, token=TOKEN, arena=arena)


@pytest.mark.parametrize("size", [1, 65_536, SIZE, MAX_SLOT_BYTES - 64])
async def test_a_request_is_read_where_it_lies(port, arena, kinds, size: int) -> None:
    handler = Holding(keeps=True)
    connection = await lent(port, arena, handler)
    payload = requested(arena, size)
    asking = asyncio.create_task(connection.infer(payload, trace="m"))
    await handler.wait_started()
    (seen,) = handler.kept
    assert (kinds, type(seen), seen.readonly, len(seen)) == (
        [Kind.INFER_LENT],
        memoryview,
        True,
        size,
    )
    assert seen == payload
    # No copy would show this.
    payload[-1] = 99
    handler.release.set()
    assert (await asking)[-1] == 99
    del payload, seen, asking
    handler.kept.clear()
    assert arena.num_taken_bytes == 0


async def test_a_slot_is_back_with_the_answer(port, arena) -> None:
    handler = Holding()
    handler.release.set()
    connection = await lent(port, arena, handler)
    for fill in range(20):
        assert await connection.infer(requested(arena, fill=fill)) == bytes((fill, fill))
        assert arena.num_taken_bytes == 0
    assert len(arena.consumers) == 1


def _cancel(asking: asyncio.Task[Any], handler: Holding) -> None:
    asking.cancel()


def _expire(asking: asyncio.Task[Any], handler: Holding) -> None:
    """It does so by itself."""


def _fail(asking: asyncio.Task[Any], handler: Holding) -> None:
    handler.failure = "full"
    handler.release.set()


_ENDS = {
    "cancelled": (_cancel, None, type(None)),
    "expired": (_expire, 0.5, DeadlineExceededError),
    "failed": (_fail, None, OverloadedError),
}


def _overwrite_what_is_free(arena: RequestArena) -> None:
    """As the next requests do."""
    slots = []
    while (slot := arena.take(SIZE)) is not None:
        slot[:] = b"\1" * SIZE
        slots.append(slot)
    assert len(slots) == ARENA_BYTES // (9 * UNIT_BYTES) - 1


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("end", _ENDS)
async def test_a_request_without_an_answer_gives_its_slot_back_when_nobody_looks(
    port, arena, keeps: bool, end: str
) -> None:
    finish, timeout_s, wanted = _ENDS[end]
    handler = Holding(keeps=keeps)
    connection = await lent(port, arena, handler)
    asking = asyncio.create_task(connection.infer(requested(arena), timeout_s))
    await handler.wait_started()
    finish(asking, handler)
    assert type(await failure_of(asking)) is wanted
    del asking
    await connection.ping()
    if keeps:
        (seen,) = handler.kept
        assert arena.num_taken_bytes > SIZE
        _overwrite_what_is_free(arena)
        assert bytes(seen) == b"\7" * SIZE
        del seen
        handler.kept.clear()
    await until_free(arena)
    handler.failure = ""
    handler.release.set()
    assert await connection.infer(b"ok") == b"ok"


async def test_a_request_that_is_refused_while_draining_gives_its_slot_back(port, arena) -> None:
    connection = await lent(port, arena, Holding())
    port.server.is_draining = True
    with pytest.raises(NotReadyError, match="draining"):
        await connection.infer(requested(arena))
    await until_free(arena)


@pytest.mark.parametrize("who", ["gateway", "replica"])
async def test_a_view_outlives_its_connection_and_ends_the_link(port, arena, who: str) -> None:
    handler = Holding(keeps=True)
    connection = await lent(port, arena, handler)
    asking = asyncio.create_task(connection.infer(requested(arena)))
    await handler.wait_started()
    if who == "gateway":
        connection.abort()
    else:
        await port.server.close()
    assert isinstance(await failure_of(asking), ConnectionLostError)
    del asking
    await until(lambda: not port.server.connections)
    await until(lambda: not arena.consumers)
    assert arena.num_taken_bytes > SIZE
    assert bytes(handler.kept[0]) == b"\7" * SIZE
    handler.kept.clear()
    await until_free(arena)


async def test_two_replicas_read_one_slot(port, arena, kinds) -> None:
    """As a retry has it: the first may still be at it."""
    one, two = Holding(), Holding()
    connections = [await lent(port, arena, handler) for handler in (one, two)]
    payload = requested(arena)
    asking = [asyncio.create_task(each.infer(payload)) for each in connections]
    del payload
    await one.wait_started()
    await two.wait_started()
    assert kinds == [Kind.INFER_LENT] * 2
    for handler in (two, one):
        assert arena.num_taken_bytes > SIZE
        handler.release.set()
        await asking.pop()
    assert arena.num_taken_bytes == 0


async def test_the_same_replica_is_sent_a_copy_while_it_still_looks(port, arena, kinds) -> None:
    handler = Holding()
    connection = await lent(port, arena, handler)
    payload = requested(arena)
    first = asyncio.create_task(connection.infer(payload))
    await handler.wait_started()
    second = asyncio.create_task(connection.infer(payload))
    await handler.wait_started()
    handler.release.set()
    assert await asyncio.gather(first, second) == [b"\7\7"] * 2
    await connection.infer(payload)
    assert kinds == [Kind.INFER_LENT, Kind.INFER, Kind.INFER_LENT]
    del payload, first, second
    await until_free(arena)


async def _copied(port: Any, arena: RequestArena, kinds: list[Kind], connection: Any) -> None:
    """A large request in a slot is answered, and no replica was told of the slot."""
    payload = requested(arena)
    assert await connection.infer(payload) == payload
    del payload
    assert kinds[-1] is Kind.INFER
    await until_free(arena)


async def echo(frame: InferFrame) -> bytes:
    """Answers with the whole request."""
    return bytes(frame.request)


async def test_requests_are_copied_where_memory_cannot_be_shared(
    port, arena, kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lent(port, arena, echo)
    over_tcp = await port.connect(await port.serve(echo), arena=arena)
    await _copied(port, arena, kinds, over_tcp)
    unix = await port.serve(echo, family="unix")
    await _copied(port, arena, kinds, await port.connect(unix))
    # As across PID namespaces, seen by either end.
    for end in ("gateway.upstream.arena_link", "contracts.transport.peer_process"):
        with monkeypatch.context() as patched:
            patched.setattr(f"services.{end}.peer_process", lambda _: 0)
            elsewhere = await port.connect(unix, arena=arena)
        await _copied(port, arena, kinds, elsewhere)
        assert len(arena.consumers) == 1


async def test_requests_are_copied_when_the_arena_is_full(port, arena, kinds) -> None:
    connection = await lent(port, arena, echo)
    full = [arena.take(MAX_SLOT_BYTES - 64) for _ in range(ARENA_BYTES // MAX_SLOT_BYTES)]
    assert None not in full
    buffer = LargeBuffer(SIZE, memoryview(b"\7" * SIZE), arena.take)
    assert await connection.infer(buffer.payload) == b"\7" * SIZE
    full.clear()
    buffer = LargeBuffer(SIZE, memoryview(b"\7" * SIZE), arena.take)
    assert await connection.infer(buffer.payload) == b"\7" * SIZE
    assert kinds == [Kind.INFER, Kind.INFER_LENT]


async def test_a_replica_that_holds_half_of_the_arena_is_lent_no_more(port, arena, kinds) -> None:
    """What hangs there leaves the rest to others."""
    handler = Holding(keeps=True)
    connection = await lent(port, arena, handler)
    other = await lent(port, arena, echo)
    asking = []
    while Kind.INFER not in kinds:
        asking.append(asyncio.create_task(connection.infer(requested(arena))))
        await handler.wait_started()
    num_lent = kinds.count(Kind.INFER_LENT)
    assert num_lent == arena.max_lent_units // 9 + 1
    assert await other.infer(requested(arena)) == b"\7" * SIZE
    assert kinds[-1] is Kind.INFER_LENT
    handler.kept.clear()
    handler.release.set()
    assert await asyncio.gather(*asking) == [b"\7\7"] * (num_lent + 1)
    asking.clear()
    await until_free(arena)
    await connection.infer(requested(arena))
    assert kinds[-1] is Kind.INFER_LENT
    handler.kept.clear()


async def test_a_part_of_a_slot_is_copied(port, arena, kinds) -> None:
    connection = await lent(port, arena, echo)
    payload = requested(arena)
    payload[0] = 1
    assert await connection.infer(payload[1:]) == payload[1:]
    assert kinds == [Kind.INFER]


async def test_what_is_closed_lends_nothing_more(port, arena, kinds) -> None:
    """A gateway that stops: requests that are still read stay as they are."""
    handler = Holding(keeps=True)
    connection = await lent(port, arena, handler)
    payload = requested(arena)
    asking = asyncio.create_task(connection.infer(payload))
    await handler.wait_started()
    arena.close()
    del payload
    assert arena.take(1) is None
    handler.release.set()
    assert await asyncio.wait_for(asking, PATIENCE_S) == b"\7\7"
    assert await connection.infer(b"x" * SIZE) == b"xx"
    assert bytes(handler.kept[0]) == b"\7" * SIZE
    handler.kept.clear()
    assert kinds == [Kind.INFER_LENT, Kind.INFER]


async def test_nothing_is_kept_of_a_connection_that_ends_while_memory_is_lent(
    port, arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def endless(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("services.gateway.upstream.replica_connection.lend_arena", endless)
    address = await port.serve(Holding(), family="unix", token=TOKEN)
    connection, gone = await connect(address, token=TOKEN), asyncio.Event()
    weakref.finalize(connection, gone.set)
    lending = asyncio.create_task(connection.lend(arena))
    await begun.wait()
    connection.close()
    await connection.wait_lost()
    await lending
    del connection, lending
    async with asyncio.timeout(PATIENCE_S):
        await gone.wait()


async def test_places_that_a_lost_connection_left_unread_come_back(port, arena) -> None:
    """As of a replica that stood still for too long: its process lives."""
    handler = Holding(keeps=True)
    connection = await lent(port, arena, handler)
    asking = [asyncio.create_task(connection.infer(requested(arena)))]
    await handler.wait_started()
    (replica,) = port.server.connections
    replica.pause_writing()  # which pauses its reading too
    asking += [asyncio.create_task(connection.infer(requested(arena))) for _ in range(3)]
    await asyncio.wait(asking, timeout=0)
    replica.abort()
    assert {type(await failure_of(each)) for each in asking} == {ConnectionLostError}
    del asking, replica
    await until(lambda: not arena.consumers)
    # The one that was read is looked at as yet, and keeps all of them.
    assert arena.num_taken_bytes == 4 * 9 * UNIT_BYTES
    handler.kept.clear()
    await until_free(arena)
