"""A replica process in which something hangs: `-m ... WHEN STALL_S`, settings as for the real one.

WHEN is `serving`: it answers a traced request, says "hangs" on standard output and never returns
from the next one. `starting`: the data port cannot be had, and the engine cannot be closed.
`loading`: the engine never comes; `looking`: it serves, and the store never answers. Both say
"hangs" too.
"""

import asyncio
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partialmethod
from typing import Any

from services.contracts.kserve.tensors import Array
from services.replica import __main__ as process
from services.replica.closing import has_threads_left
from services.replica.engine.loaded_engine import LoadedEngine, RunningEngine
from services.replica.engine.manager import EngineManager
from services.replica.engine.standby import Standby
from services.replica.server import ReplicaServer
from services.replica.transport.data_server import DataServer
from services.telemetry.tracing import CarriedTrace
from tests.integration.replica.published import ids_of, request_of

TRACE = CarriedTrace(f"00-{'a' * 32}-b7ad6b7169203331-01").beside("request")
plain_load, plain_start = EngineManager.load, ReplicaServer.start
# What nobody waits for, so that it is not collected.
kept: list[object] = []


class Hanging:
    """An engine that holds its thread for good: after its first run, and when it is closed."""

    def __init__(self, engine: RunningEngine) -> None:
        self._engine, self._has_run = engine, False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute once."""
        if self._has_run:
            _hang()
        self._has_run = True
        return self._engine.run(inputs)

    def close(self) -> None:
        """Hold."""
        threading.Event().wait()


def _load(host: EngineManager) -> LoadedEngine:
    loaded = plain_load(host)
    hanging = Hanging(loaded.engine)
    return replace(loaded, engine=hanging, is_brief=False, stall_s=float(sys.argv[2]))


async def _start(server: ReplicaServer) -> None:
    await plain_start(server)
    await server.replica.infer(request_of(ids_of(1, 2)), trace=TRACE)
    # When it serves: the loop has no turn before.
    asyncio.get_running_loop().call_soon(server.replica.infer, request_of(ids_of(1, 2)))


async def _cannot_listen(server: DataServer, address: str) -> str:
    raise OSError("no port is free")


def _hang(*_: object) -> Any:
    print("hangs", flush=True)
    threading.Event().wait()


async def _look(server: ReplicaServer) -> None:
    await plain_start(server)
    EngineManager.choose = _hang  # type: ignore[method-assign]
    kept.append(asyncio.create_task(server.replica.reselect_engine()))


if __name__ == "__main__":
    match sys.argv[1]:
        case "serving":
            EngineManager.load = _load  # type: ignore[method-assign]
            ReplicaServer.start = _start  # type: ignore[method-assign]
        case "starting":
            EngineManager.load = _load  # type: ignore[method-assign]
            DataServer.listen = _cannot_listen  # type: ignore[method-assign]
        case "loading":
            EngineManager.load = _hang  # type: ignore[method-assign]
        case "looking":
            ReplicaServer.start = _look  # type: ignore[method-assign]
    ReplicaServer.stop = partialmethod(ReplicaServer.stop, grace_s=0.1)  # type: ignore[method-assign, assignment]
    Standby.__init__ = partialmethod(Standby.__init__, close_timeout_s=0.1)  # type: ignore[method-assign, assignment]
    process.has_threads_left = lambda timeout_s: has_threads_left(0.1)  # type: ignore[attr-defined]
    sys.exit(process.main())
