"""A replica in a process of its own, without Ray: `python -m tests.replica_process`.

Settings are environment variables with the prefix SMELT_REPLICA_. It is ready once `ready_fd` has
its addresses, and SIGTERM drains it.
"""

import asyncio
import signal

from services.contracts.process.interpreter import tune_for_serving
from services.engines.caches.compile_cache import prepare_compile_cache
from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready
from services.telemetry.recorder import NullRecorder


class ProcessSettings(ReplicaSettings):
    """Those of a replica, and the pipe that gets one JSON line once it serves."""

    ready_fd: int = -1


async def serve(settings: ProcessSettings) -> None:
    """Serve until SIGTERM, then drain."""
    server = ReplicaServer(settings, NullRecorder())
    await server.start()
    tune_for_serving()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    announce_ready(settings.ready_fd, {"addresses": server.addresses, "token": server.token.hex()})
    await stop.wait()
    await server.stop()


def main() -> None:
    """As Ray's actor does before it serves, see `services.replica.deployment`."""
    configure_logging("replica")
    settings = ProcessSettings()  # type: ignore[call-arg] # of the environment
    use_passive_wait_policy()
    prepare_compile_cache(settings.cache_dir)
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
