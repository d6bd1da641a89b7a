"""A replica process whose engine never returns from its first request: `-m ... SETTINGS_JSON`."""

import asyncio
import logging
import sys
import threading
from dataclasses import replace
from typing import Any

from services.replica import __main__ as process
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from tests.integration.replica.published import ids_of, request_of


class Hung:
    """An engine that holds its thread for good."""

    def run(self, inputs: Any) -> Any:
        """Hold."""
        threading.Event().wait()

    def close(self) -> None:
        """Hold nothing."""


async def _start(server: ReplicaServer) -> None:
    await _plain_start(server)
    worker = server.replica._worker
    assert worker is not None
    worker.seat = replace(worker.seat, engine=Hung(), is_brief=False, stall_s=0.0)
    asyncio.get_running_loop().call_later(0.1, server.replica.infer, request_of(ids_of(1, 2)))


_plain_start = ReplicaServer.start

if __name__ == "__main__":
    logging.basicConfig()
    ReplicaServer.start = _start  # type: ignore[method-assign]
    asyncio.run(process._serve(ReplicaSettings.model_validate_json(sys.argv[1]), None))
