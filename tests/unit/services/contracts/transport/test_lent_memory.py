"""Sealed memory: the peer may look, and nobody can pull it from under the other."""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator

import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.lent_memory import peers_memory, sealed_memory

NUM_BYTES = 4 * mmap.PAGESIZE
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture(params=[True, False], ids=["arena", "ledger"])
def memory(request: pytest.FixtureRequest) -> Iterator[tuple[int, mmap.mmap, bool]]:
    """A descriptor, our mapping, and whether it is ours to write."""
    descriptor, ours = sealed_memory("smelt-test", NUM_BYTES, is_ours_to_write=request.param)
    yield descriptor, ours, request.param
    os.close(descriptor)


@pytest.fixture
def arena() -> Iterator[tuple[int, mmap.mmap]]:
    """Memory that is ours to write."""
    descriptor, ours = sealed_memory("smelt-test", NUM_BYTES, is_ours_to_write=True)
    ours[:5] = b"ours!"
    yield descriptor, ours
    os.close(descriptor)


def test_the_peer_sees_what_we_write_from_then_on(arena: tuple[int, mmap.mmap]) -> None:
    descriptor, ours = arena
    theirs = peers_memory(descriptor, is_writable=False)
    ours[-3:] = b"end"
    assert (theirs[:5], theirs[-3:], len(theirs)) == (b"ours!", b"end", NUM_BYTES)
    assert memoryview(theirs).readonly
    with pytest.raises(TypeError):
        theirs[0] = 1


def _map_writable(descriptor: int) -> None:
    mmap.mmap(descriptor, NUM_BYTES)


def _map_again(descriptor: int) -> None:
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        mmap.mmap(again, NUM_BYTES)
    finally:
        os.close(again)


_WRITES: dict[str, Callable[[int], object]] = {
    "map": _map_writable,
    "open and map": _map_again,
    "write": lambda descriptor: os.pwrite(descriptor, b"x", 0),
    "seal": lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
}


@pytest.mark.parametrize("way", _WRITES)
def test_the_peer_cannot_change_what_is_ours(arena: tuple[int, mmap.mmap], way: str) -> None:
    descriptor, ours = arena
    with pytest.raises(PermissionError):
        _WRITES[way](descriptor)
    with pytest.raises(InvalidRequestError, match="cannot be mapped"):
        peers_memory(descriptor, is_writable=True)
    assert ours[:5] == b"ours!"


def test_the_peer_writes_the_ledger() -> None:
    descriptor, ours = sealed_memory("smelt-test", 3, is_ours_to_write=False)
    ours[1] = 1
    theirs = peers_memory(descriptor, is_writable=True)
    os.close(descriptor)
    assert (len(theirs), theirs[:]) == (3, b"\0\1\0")
    theirs[1] = 0
    assert ours[:] == bytes(3)


@pytest.mark.parametrize("num_bytes", [0, 1, NUM_BYTES - 1, NUM_BYTES + 1, 4 * NUM_BYTES])
def test_nobody_changes_the_size(memory: tuple[int, mmap.mmap, bool], num_bytes: int) -> None:
    descriptor, ours, _ = memory
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, num_bytes)
    assert (os.fstat(descriptor).st_size, ours[-1]) == (NUM_BYTES, 0)


def test_no_seal_can_be_taken_away_or_added(memory: tuple[int, mmap.mmap, bool]) -> None:
    descriptor, _, is_ours = memory
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    assert seals & (_SIZE_SEALS | fcntl.F_SEAL_SEAL) == _SIZE_SEALS | fcntl.F_SEAL_SEAL
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == seals
    assert not os.get_inheritable(descriptor)
    assert bool(seals & 0x10) is is_ours


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW])
def test_memory_that_could_change_its_size_is_refused(seals: int) -> None:
    descriptor = os.memfd_create("smelt-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, NUM_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(InvalidRequestError, match=f"{NUM_BYTES} bytes has seals {seals:#x}"):
        peers_memory(descriptor, is_writable=False)
    os.close(descriptor)


def test_memory_that_its_peer_could_have_us_write_is_not_only_read() -> None:
    """A ledger in place of an arena: whoever else has it could change requests under us."""
    descriptor, _ = sealed_memory("smelt-test", NUM_BYTES, is_ours_to_write=False)
    with pytest.raises(InvalidRequestError, match=f"{NUM_BYTES} bytes has seals 0x7"):
        peers_memory(descriptor, is_writable=False)
    os.close(descriptor)


def test_empty_memory_is_refused() -> None:
    descriptor = os.memfd_create("smelt-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    with pytest.raises(InvalidRequestError, match="of 0 bytes"):
        peers_memory(descriptor, is_writable=False)
    os.close(descriptor)


def test_what_is_no_memory_is_refused() -> None:
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        with pytest.raises(InvalidRequestError, match="cannot be mapped"):
            peers_memory(descriptor, is_writable=False)
        os.close(descriptor)


def test_a_failure_to_make_it_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create = os.memfd_create

    def watched(*arguments: object) -> int:
        made.append(create(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("os.memfd_create", watched)
    with pytest.raises(OSError, match="Invalid argument"):
        sealed_memory("smelt-test", -1, is_ours_to_write=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
