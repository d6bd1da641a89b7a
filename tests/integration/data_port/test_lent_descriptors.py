"""Peers that lend a replica memory which they should not: it is refused, and nothing is kept."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.contracts.transport.frames import Kind, encode_hello
from services.contracts.transport.lent_memory import DESCRIPTORS, UNIT_BYTES, sealed_memory
from tests.integration.data_port.lending import refusal_of, requested, wire

TOKEN = bytes(range(32))
NUM_UNITS = 4


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
    made["pipe"], made["its end"] = os.pipe()
    os.ftruncate(made["unsealed"], NUM_UNITS * UNIT_BYTES)
    yield made
    for descriptor in made.values():
        os.close(descriptor)


_LENT: dict[str, tuple[str, str, str]] = {
    "unsealed arena": ("unsealed", "ledger", "has seals 0x0"),
    "unsealed ledger": ("arena", "unsealed", "has seals 0x0"),
    "another size": ("arena", "long ledger", "with a ledger of 5"),
    "two arenas": ("arena", "arena", "cannot be mapped"),
    "exchanged": ("ledger", "arena", "has seals 0x7"),
    "no memory": ("file", "ledger", "cannot be mapped"),
    "a pipe": ("pipe", "ledger", "cannot be mapped"),
}


@pytest.mark.parametrize("fault", _LENT)
async def test_memory_that_should_not_be_lent_is_refused(port, arena, memory, fault: str) -> None:
    """The connection goes on without, and the next one that lends is served."""
    slots, ledger, reason = _LENT[fault]
    address = await port.serve(family="unix", token=TOKEN)
    peer = await port.dial_raw(address)
    peer.writer.write(wire(Kind.HELLO, 0, encode_hello(TOKEN)))
    assert (await peer.read_frame()).kind is Kind.HELLO
    num_open = _num_open(memory)
    assert reason in await refusal_of(peer, DESCRIPTORS.pack(memory[slots], memory[ledger]))
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
