"""One connection that floods: `python -m tests.benchmarks.floods.attacker PORT ATTACK`.

Once it is ended it connects anew a second later. Prints a line when the first connection begins to
flood, then how many seconds each connection lasted.
"""

import socket
import sys
import threading
import time
from contextlib import suppress

from tests.benchmarks.floods.attacks import ATTACKS
from tests.integration.grpc_server import frames as f


def flood(port: int, attack: str) -> None:
    """Flood until killed."""
    print("flooding", flush=True)
    while True:
        began_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            threading.Thread(target=_discard, args=(connection,), daemon=True).start()
            try:
                connection.sendall(f.greeting())
                for piece in ATTACKS[attack]():
                    connection.sendall(piece)
            except OSError:
                print(time.monotonic() - began_s, flush=True)
        # Not a wait for an event: an ended connection comes again once a second.
        time.sleep(1)


def _discard(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 20):
            pass
        connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    flood(int(sys.argv[1]), sys.argv[2])
