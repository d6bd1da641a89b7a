"""One client that attacks: `python -m tests.benchmarks.floods.attacker PORT TLS_PORT ATTACK`.

A connection that the server ends is made anew a second later. Prints a line when the attack begins,
and one when a crowd is complete; then for a connection that was ended how many seconds it lasted,
and the code of GOAWAY or "none": of a crowd for the first one alone.
"""

import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from tests.benchmarks.floods.attacks import ATTACKS
from tests.benchmarks.floods.crowds import CROWDS, Crowd
from tests.benchmarks.floods.serving import open_more_files
from tests.integration.grpc_server import frames as f

# GOAWAY with as much debug data as this server sends.
_LAST_BYTES: Final = 9 + 8 + 256
# Its kind, flags and stream.
_GOAWAY: Final = b"\x07\x00" + bytes(4)
# Files of the attacker that are no connections.
_OTHER_FILES: Final = 50


def flood(port: int, attack: str) -> None:
    """Flood with one connection until killed."""
    # What takes long to make is made before.
    next(ATTACKS[attack](), b"")
    print("attacking", flush=True)
    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            reading = threading.Thread(target=_read, args=(connection,), daemon=True)
            reading.start()
            with suppress(OSError):
                connection.sendall(f.greeting())
                for piece in ATTACKS[attack]():
                    connection.sendall(piece)
            # An attack that has an end keeps its connection.
            reading.join()
        # Not a wait for an event: an ended connection comes again once a second.
        time.sleep(1)


def _read(connection: socket.socket) -> None:
    """Discard what comes until the server ends the connection, and say how it did."""
    began_s = time.monotonic()
    last = b""
    with suppress(OSError):
        while piece := connection.recv(1 << 20):
            last = (last + piece)[-_LAST_BYTES:]
        connection.shutdown(socket.SHUT_RDWR)
    _say_end(began_s, last)


def _say_end(began_s: float, last: bytes) -> None:
    code = _goaway_code(last)
    print(f"{time.monotonic() - began_s:.3f} {'none' if code is None else code}", flush=True)


def _goaway_code(received: bytes) -> int | None:
    """Of the last frame, where that is GOAWAY."""
    at = received.rfind(_GOAWAY)
    is_last = at >= 3 and int.from_bytes(received[at - 3 : at]) == len(received) - at - 6
    return int.from_bytes(received[at + 10 : at + 14]) if is_last else None


class _Member:
    """One connection of a crowd."""

    def __init__(self, port: int, crowd: Crowd) -> None:
        self.began_s = time.monotonic()
        self.last = b""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._slow = iter(crowd.slow)
        with suppress(OSError):
            self._socket.sendall(crowd.first)
            if crowd.is_half_closed:
                self._socket.shutdown(socket.SHUT_WR)
        self._socket.setblocking(False)

    def goes_on(self) -> bool:
        """Send the next byte; False once the server has ended the connection."""
        with suppress(BlockingIOError):
            try:
                self._socket.send(bytes((next(self._slow),)))
            except StopIteration:
                pass
            except ConnectionError:
                return False
            try:
                while piece := self._socket.recv(65_536):
                    self.last = (self.last + piece)[-_LAST_BYTES:]
            except ConnectionError:
                pass
            return False
        return True

    def close(self) -> None:
        self._socket.close()


def gather(port: int, crowd: Crowd) -> None:
    """Keep a crowd connected until killed."""
    most = open_more_files() - _OTHER_FILES
    if most < crowd.number:
        print(f"{most} connections alone: the limit of open files", file=sys.stderr)
    print("attacking", flush=True)
    members = [_Member(port, crowd) for _ in range(min(crowd.number, most))]
    print("gathered", flush=True)
    is_said = False
    while True:
        # Not a wait for an event, as above.
        time.sleep(1)
        for place, member in enumerate(members):
            if not member.goes_on():
                if not is_said:
                    is_said = True
                    _say_end(member.began_s, member.last)
                member.close()
                members[place] = _Member(port, crowd)


def main(port: int, tls_port: int, attack: str) -> None:
    """Attack until killed."""
    if attack in ATTACKS:
        flood(port, attack)
    crowd = CROWDS[attack]
    gather(tls_port if crowd.is_secure else port, crowd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
