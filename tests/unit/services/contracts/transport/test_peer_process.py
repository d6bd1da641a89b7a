"""The process at the other end of a socket, and what it has open."""

import os
import socket
from pathlib import Path

import pytest

from services.contracts.transport.peer_process import open_peers_file, peer_process


def test_the_kernel_names_the_process_at_the_other_end() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_process(one) == os.getpid()
    with socket.socket(socket.AF_INET) as of_a_network:
        assert peer_process(of_a_network) == 0


def test_a_file_is_the_one_that_is_open_there_whatever_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    theirs = os.open(path, os.O_RDWR)
    path.unlink()
    path.write_bytes(b"second")
    one, other = socket.socketpair()
    with one, other:
        own = open_peers_file(one, theirs, os.O_RDWR)
        with pytest.raises(OSError, match="No such file"):
            open_peers_file(one, 2**31 - 1, os.O_RDONLY)
    os.close(theirs)
    assert os.pread(own, 5, 0) == b"first"
    assert not os.get_inheritable(own)
    os.close(own)
