"""One replica without Ray: `python -m services.replica`, settings in SMELT_REPLICA_*.

SIGTERM and SIGINT drain it and end it with 0, also when an engine or the store hangs; a
wrong setting ends it with 2, a replica that cannot answer any more with 70: whatever started it
is to start it again.
"""

import asyncio
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, Protocol

from services.contracts.errors import InvalidRequestError, SmeltError
from services.contracts.process.interpreter import tune_for_serving
from services.contracts.process.settings import read_settings
from services.engines.caches.compile_cache import prepare_compile_cache
from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
from services.replica.closing import has_threads_left
from services.replica.engine.hang_watch import HangWatch, end_process
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready
from services.telemetry.recorder import NullRecorder
from services.telemetry.tracing import Tracing, TracingSettings, tracing_from_settings

logger = logging.getLogger(__name__)

# As often as Serve looks where it keeps replicas, and as often in a row.
_HEALTH_PERIOD_S = 1.0
_MAX_UNHEALTHY_IN_A_ROW = 3
# Parts that hang are waited for by the stop itself, each for some seconds.
_STOP_TIMEOUT_S = 30.0
# What was closed has nothing left to do; this is for a machine without a free core.
_THREADS_TIMEOUT_S = 2.0


def main() -> int:
    """Run until a signal asks to stop; returns the process's exit status."""
    # Until it serves there is nothing to drain, and a signal ends it at once, whatever its threads
    # do: Python's own way with SIGINT would wait for them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    configure_logging("replica")
    try:
        settings = read_settings(ReplicaSettings)
        tracing = tracing_from_settings(read_settings(TracingSettings), "smelt-replica")
    except InvalidRequestError as error:
        logger.error("%s", error)
        return 2
    use_passive_wait_policy()
    prepare_compile_cache(settings.cache_dir)
    try:
        return asyncio.run(_run(settings, tracing))
    finally:
        if tracing:
            tracing.close()


async def _run(settings: ReplicaSettings, tracing: Tracing | None) -> int:
    """Serve until a signal asks to stop; returns the exit status, unless an engine blocks it."""
    workers = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(workers)
    try:
        status = await _serve(ReplicaServer(settings, NullRecorder(), tracing=tracing), settings)
    except SmeltError as error:
        logger.error("replica cannot serve: %s", error)
        status = 1
    except Exception:  # raised from here, it would not be seen before an engine that hangs returns
        logger.exception("replica cannot serve")
        status = 1
    workers.shutdown(wait=False, cancel_futures=True)
    # A replica that cannot answer may hang anywhere.
    if status == os.EX_SOFTWARE or await _has_threads_left():
        _exit(status, tracing)
    return status


async def _has_threads_left() -> bool:
    """Waits beside the loop, which engines that close need."""
    waiter = ThreadPoolExecutor(max_workers=1)
    try:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(waiter, has_threads_left, _THREADS_TIMEOUT_S)
    finally:
        waiter.shutdown(wait=False)


async def _serve(server: ReplicaServer, settings: ReplicaSettings) -> int:
    await server.start()
    watch = HangWatch(server.replica, end_process)
    watch.start()
    tune_for_serving()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    document = {
        "replica_id": server.replica_id,
        "addresses": server.addresses,
        "token": server.token.hex(),
    }
    announce_ready(settings.ready_fd, document)
    unhealthy = asyncio.create_task(until_unhealthy(server, _HEALTH_PERIOD_S))
    waits = [asyncio.create_task(event.wait()) for event in (stop, server.drained)]
    await asyncio.wait([unhealthy, *waits], return_when=asyncio.FIRST_COMPLETED)
    for wait in (unhealthy, *waits):
        wait.cancel()
    status = await _stopped(server, is_healthy=not unhealthy.done())
    watch.stop()
    return status


class Checked(Protocol):
    """What has a health check."""

    async def check_health(self) -> None:
        """Raise when it must be replaced."""
        ...


async def until_unhealthy(server: Checked, period_s: float) -> None:
    """Check a replica's health at intervals; returns after three failures in a row."""
    num_failed = 0
    while num_failed < _MAX_UNHEALTHY_IN_A_ROW:
        await asyncio.sleep(period_s)
        try:
            await server.check_health()
            num_failed = 0
        except Exception as error:  # whatever it is, it would be lost otherwise
            num_failed += 1
            logger.error(
                "health check failed, %d of %d in a row: %s",
                num_failed,
                _MAX_UNHEALTHY_IN_A_ROW,
                error,
            )


async def _stopped(server: ReplicaServer, *, is_healthy: bool) -> int:
    """Answer what can be answered and close what can be closed; returns the exit status."""
    try:
        if is_healthy:
            await server.stop()
            return os.EX_OK
        logger.critical("the replica cannot answer any more; the process ends")
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await server.stop(grace_s=0)
    except Exception:
        logger.exception("not all of the replica was closed")
    return 1 if is_healthy else os.EX_SOFTWARE


def _exit(status: int, tracing: Tracing | None) -> NoReturn:
    """Send what is traced and logged, then end at once: the interpreter would wait for threads."""
    logger.warning("the process ends without waiting for what may hang in it")
    try:
        if tracing:
            tracing.close()
        logging.shutdown()
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
