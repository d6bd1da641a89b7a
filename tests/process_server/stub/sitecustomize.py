"""Has the process server of the tests run what was asked of this interpreter, where there is one.

On the PYTHONPATH of tests that use the server; every other program goes on as if it were not here.
The process stays what its parent knows: its standard streams are lent to the server's child, it
ends as that child ends, and the child is ended when it is killed.
"""

import os
import sys

# The compiler's throw-away children, which import torch and work for a moment.
SERVED = ("build-one", "export-graph", "import-one", "prove-one", "replay-one", "verdict-one")


def _ask(address: str, arguments: list[str]) -> int:
    """The exit code of the server's child; negative is the signal that ended it."""
    import json
    import socket

    order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"."], [0, 1, 2])
        server.sendall(json.dumps(order).encode() + b"\n")
        answer = server.recv(16)
    if not answer:
        sys.stderr.write("the process server of the tests ended\n")
    return int(answer or b"1")


def _end_with_parent(parent_pid: int) -> None:
    """As `services.contracts.process.lifetime` does, which is on no path yet."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _end_as(code: int) -> None:
    if code < 0:
        import signal

        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_address = os.environ.get("SMELT_TESTS_PROCESS_SERVER")
_words = sys.orig_argv[1:]
if _address and _words[:2] == ["-m", "compiler_worker"] and _words[2] in SERVED:
    if "--parent-pid" in _words:
        _end_with_parent(int(_words[_words.index("--parent-pid") + 1]))
    if _words[2] == os.environ.get("SMELT_TESTS_STOPPED"):
        import signal

        os.kill(os.getpid(), signal.SIGSTOP)  # until the test lets it go on
    _end_as(_ask(_address, _words[2:]))
