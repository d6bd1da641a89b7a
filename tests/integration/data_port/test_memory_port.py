"""Peers that give a replica memory which they should not, or do not say what they give."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.contracts.transport.frames import NO_TOKEN
from services.contracts.transport.lent_memory import (
    GREETING,
    MAGIC,
    REFUSAL,
    UNIT_BYTES,
    VERSION,
    WELCOME,
    memory_path,
    sealed_memory,
)
from tests.integration.data_port.lending import (
    PATIENCE_S,
    open_link,
    refusal_of,
    requested,
    until,
)

TOKEN = bytes(range(32))
LINK_ID = bytes(16)
NUM_UNITS = 4
GOOD = GREETING.pack(MAGIC, VERSION, TOKEN, LINK_ID)


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Errors that pytest keeps refer to all that they are about."""
    caplog.set_level(logging.ERROR)


@pytest.fixture
def memory() -> Iterator[dict[str, int]]:
    """Descriptors of memory, good and bad."""
    made = {
        "arena": sealed_memory("a", NUM_UNITS * UNIT_BYTES, is_ours_to_write=True)[0],
        "ledger": sealed_memory("l", NUM_UNITS, is_ours_to_write=False)[0],
        "long ledger": sealed_memory("l", NUM_UNITS + 1, is_ours_to_write=False)[0],
        "unsealed": os.memfd_create("u", os.MFD_ALLOW_SEALING),
        "file": os.open("/dev/null", os.O_RDWR),
    }
    os.ftruncate(made["unsealed"], NUM_UNITS * UNIT_BYTES)
    yield made
    for descriptor in made.values():
        os.close(descriptor)


async def _answer_to(address: str, said: bytes, descriptors: list[int]) -> bytes:
    """What the memory port says to a greeting, until it hangs up or has welcomed us."""
    with await _dialled(address) as peer:
        socket.send_fds(peer, [said], descriptors)
        return await _heard(peer)


async def _dialled(address: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(peer, memory_path(address.removeprefix("unix:")))
    return peer


async def _heard(peer: socket.socket) -> bytes:
    heard = b""
    async with asyncio.timeout(PATIENCE_S):
        while heard != WELCOME and (more := await asyncio.get_running_loop().sock_recv(peer, 4096)):
            heard += more
    return heard


PAIR = ("arena", "ledger")
_GREETINGS: dict[str, tuple[bytes, tuple[str, ...], str]] = {
    "wrong token": (GREETING.pack(MAGIC, VERSION, NO_TOKEN, LINK_ID), PAIR, "does not send the t"),
    "garbage": (b"x" * GREETING.size, PAIR, "a greeting of b'xxxx'"),
    "HTTP": (b"GET / HTTP/1.1\r\n\r\n", (), "a greeting of 18 bytes and 0 descriptors"),
    "short": (GOOD[:-1], PAIR, "of 53 bytes and 2 descriptors; wanted 54 and 2"),
    "version": (GREETING.pack(MAGIC, 2, TOKEN, LINK_ID), PAIR, "run gateway and replica of one"),
    "none": (GOOD, (), "54 bytes and 0 descriptors"),
    "one": (GOOD, ("arena",), "54 bytes and 1 descriptors"),
    "unsealed arena": (GOOD, ("unsealed", "ledger"), "has seals 0x0"),
    "unsealed ledger": (GOOD, ("arena", "unsealed"), "has seals 0x0"),
    "another size": (GOOD, ("arena", "long ledger"), "with a ledger of 5"),
    "two arenas": (GOOD, ("arena", "arena"), "cannot be mapped"),
    "exchanged": (GOOD, ("ledger", "arena"), "has seals 0x7"),
    "no memory": (GOOD, ("file", "ledger"), "cannot be mapped"),
}


@pytest.mark.parametrize("fault", _GREETINGS)
async def test_who_lends_what_it_should_not_is_told_and_closed(
    port, arena, memory, fault: str
) -> None:
    """And whoever comes next is served."""
    said, names, reason = _GREETINGS[fault]
    address = await port.serve(family="unix", token=TOKEN)
    num_open = _num_open(memory)
    heard = await _answer_to(address, said, [memory[name] for name in names])
    assert heard.startswith(REFUSAL)
    assert reason in heard.decode()
    assert _num_open(memory) == num_open
    connection = await port.connect(address, token=TOKEN, arena=arena)
    assert await connection.infer(requested(arena)) == requested(arena)
    assert len(arena.consumers) == 1


def _num_open(memory: dict[str, int]) -> int:
    """Descriptors of such memory: others come and go, as garbage is collected."""
    wanted = {Path(f"/proc/self/fd/{each}").readlink() for each in memory.values()}
    num_open = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since, as that of this list is
            num_open += descriptor.readlink() in wanted
    return num_open


async def test_more_descriptors_than_two_are_not_kept(port, memory) -> None:
    address = await port.serve(family="unix", token=TOKEN)
    num_open = _num_open(memory)
    descriptors = [memory["arena"], memory["ledger"], *([memory["file"]] * 20)]
    assert await _answer_to(address, GOOD, descriptors) == WELCOME
    # A mapping's descriptor for each memory.
    assert _num_open(memory) <= num_open + 2


async def test_a_replica_without_a_token_takes_any(port, memory) -> None:
    address = await port.serve(family="unix")
    assert await _answer_to(address, GOOD, [memory[name] for name in PAIR]) == WELCOME


async def test_a_peer_that_says_nothing_is_given_up(port) -> None:
    address = await port.serve(family="unix", greeting_timeout_s=0.05)
    with await _dialled(address) as silent:
        assert await _heard(silent) == b""
    # It is forgotten, too: a socket that is closed cannot be let go of once more.
    await port.server.close()


async def test_what_nobody_claims_is_let_go_of(port, arena) -> None:
    address = await port.serve(family="unix", token=TOKEN, greeting_timeout_s=0.3)
    link = await open_link(arena, address, TOKEN)
    assert arena.consumers == {link}
    await until(lambda: not arena.consumers)
    assert link is not None
    port.server.greeting_timeout_s = PATIENCE_S
    refusal = await refusal_of(port, address, TOKEN, link)
    assert "nothing was lent under that id" in refusal


async def test_a_port_that_closes_lets_go_of_everyone(port, arena, tmp_path) -> None:
    address = await port.serve(family="unix", token=TOKEN)
    with await _dialled(address) as silent:
        # Peers are taken in their order: when this one is welcome, the other is waited for.
        assert await open_link(arena, address, TOKEN) is not None
        await port.server.close()
        assert await _heard(silent) == b""
    await until(lambda: not arena.consumers)
    assert list(tmp_path.iterdir()) == []
    assert await open_link(arena, address, TOKEN) is None
    await port.server.close()
