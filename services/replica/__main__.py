"""One replica without Ray: `python -m services.replica`, settings in SMELT_REPLICA_*.

SIGTERM and SIGINT drain it and end it with 0; a wrong setting ends it with 2.
"""

import asyncio
import logging
import signal
import sys

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.interpreter import tune_for_serving
from services.contracts.settings import read_settings
from services.engines.compile_cache import prepare_compile_cache
from services.replica.hang_watch import HangWatch, end_process
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready
from services.telemetry.recorder import NullRecorder
from services.telemetry.tracing import Tracing, TracingSettings, tracing_from_settings

logger = logging.getLogger(__name__)


def main() -> int:
    """Run until told to stop; returns the process's exit status."""
    configure_logging("replica")
    try:
        settings = read_settings(ReplicaSettings)
        tracing = tracing_from_settings(read_settings(TracingSettings), "smelt-replica")
    except InvalidRequestError as error:
        logger.error("%s", error)
        return 2
    prepare_compile_cache(settings.cache_dir)
    try:
        asyncio.run(_serve(settings, tracing))
    except SmeltError as error:
        logger.error("replica cannot serve: %s", error)
        return 1
    finally:
        if tracing:
            tracing.close()
    return 0


async def _serve(settings: ReplicaSettings, tracing: Tracing | None) -> None:
    server, stop = ReplicaServer(settings, NullRecorder(), tracing=tracing), asyncio.Event()
    await server.start()
    watch = HangWatch(server.replica, end_process)
    watch.start()
    tune_for_serving()
    # Not before: until it serves there is nothing to drain, and a signal may end it at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    said = {
        "replica_id": server.replica_id,
        "addresses": server.addresses,
        "token": server.token.hex(),
    }
    announce_ready(settings.ready_fd, said)
    waits = [asyncio.create_task(event.wait()) for event in (stop, server.drained)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await server.stop()
    watch.stop()


if __name__ == "__main__":
    sys.exit(main())
