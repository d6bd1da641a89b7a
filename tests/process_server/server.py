"""A process that has imported torch and its compilers, and forks for each program asked of it.

`python -m tests.process_server.server SOCKET`. To import them takes two to five seconds of a
processor, and a build of a tiny model starts four processes that do. For children that are not
themselves under test: a forked one shows no memory of its own to its parent, and is not in its
process group. `stub/sitecustomize.py` is what asks.
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from compiler_worker.__main__ import main
from services.contracts.process.lifetime import end_with_parent

# What the compiler's children import, with the parts of torch that load on first use.
MODULES = (
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "onnxruntime",
    "compiler_worker.children.child",
    "compiler_worker.plans.import_child",
    "compiler_worker.proof.proof_child",
    "compiler_worker.proof.replay_child",
    "compiler_worker.model_checks.verdict_child",
)


def serve(address: str) -> None:
    """Fork for each connection, until the process that started this one ends."""
    for name in MODULES:
        importlib.import_module(name)
    # A fork takes no threads along, and what they hold stays locked in the child.
    assert threading.active_count() == 1
    # Keepers are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    os._exit(_keep(connection))


def _keep(connection: socket.socket) -> int:
    """Start one child and tell how it ended; end it when nobody waits for it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    order = json.loads(connection.makefile("rb").readline())
    child = os.fork()
    if child == 0:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        connection.close()
        os._exit(_run(order))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    with suppress(ProcessLookupError, PermissionError):
        # What the child started ends with it, as its parent would see to.
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended in ready:
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _run(order: dict[str, object]) -> int:
    """What `python -m compiler_worker` would do with these arguments; the exit code."""
    arguments, environment = order["arguments"], order["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(order["folder"]))
    if "--parent-pid" in arguments:
        # The keeper sees to that: this process's parent is another.
        arguments[arguments.index("--parent-pid") + 1] = "0"
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    end_with_parent(os.getppid())
    Path(sys.argv[1]).unlink(missing_ok=True)
    serve(sys.argv[1])
