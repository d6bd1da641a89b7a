"""A replica process in which something hangs: `-m ... WHEN STALL_S`, settings as for the real one.

WHEN is `serving`: it answers a traced request, says "hangs" on standard output and never returns
from the next one. `starting`: the data port cannot be had, and the engine cannot be closed.
`loading`: the engine never comes; `looking`: it serves, and the store never answers. Both say
"hangs" too.
"""

import asyncio
import sys
import threading
from dataclasses import replace
from functools import partialmethod
from typing import Any

from services.replica import __main__ as process
from services.replica import standby
from services.replica.engine_host import EngineHost
from services.replica.server import ReplicaServer
from services.telemetry.tracing import CarriedTrace
from tests.integration.replica.published import ids_of, request_of

TRACE = CarriedTrace(f"00-{'a' * 32}-b7ad6b7169203331-01").beside("request")


class Hung:
    """An engine that holds its thread for good."""

    def run(self, inputs: Any) -> Any:
        """Say so and hold."""
        print("hangs", flush=True)
        threading.Event().wait()

    def close(self) -> None:
        """Hold."""
        threading.Event().wait()


def _break_engine(server: ReplicaServer) -> None:
    worker = server.replica._worker
    assert worker is not None
    worker.seat = replace(worker.seat, engine=Hung(), is_brief=False, stall_s=float(sys.argv[2]))


async def _start(server: ReplicaServer) -> None:
    await _plain_start(server)
    await server.replica.infer(request_of(ids_of(1, 2)), trace=TRACE)
    _break_engine(server)
    # When it serves: the loop has no turn before.
    asyncio.get_running_loop().call_soon(server.replica.infer, request_of(ids_of(1, 2)))


async def _cannot_listen(server: ReplicaServer) -> None:
    _break_engine(server)
    raise OSError("no port is free")


def _hang(*_: object) -> Any:
    print("hangs", flush=True)
    threading.Event().wait()


async def _look(server: ReplicaServer) -> None:
    await _plain_start(server)
    server.replica._host.choose = _hang  # type: ignore[method-assign]
    server._looking = asyncio.create_task(server.replica.swap_if_better())  # type: ignore[attr-defined]


_plain_start = ReplicaServer.start

if __name__ == "__main__":
    match sys.argv[1]:
        case "serving":
            ReplicaServer.start = _start  # type: ignore[method-assign]
        case "starting":
            ReplicaServer._listen = _cannot_listen  # type: ignore[method-assign, assignment]
        case "loading":
            EngineHost.load = _hang  # type: ignore[method-assign]
        case "looking":
            ReplicaServer.start = _look  # type: ignore[method-assign]
    ReplicaServer.stop = partialmethod(ReplicaServer.stop, grace_s=0.1)  # type: ignore[method-assign, assignment]
    standby._CLOSE_TIMEOUT_S = process._THREADS_TIMEOUT_S = 0.1
    sys.exit(process.main())
