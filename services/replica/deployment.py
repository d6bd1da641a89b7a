"""The replica as a Ray Serve deployment: Ray places, restarts, scales and rolls it.

No request passes through Ray: the data port is the replica's own. Beside this package's `app`,
`scaling` and `ray_worker` no other module imports Ray.
"""

import asyncio
from typing import Any

from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.process.interpreter import tune_for_serving
from services.contracts.process.settings import read_settings
from services.engines.caches.compile_cache import prepare_compile_cache
from services.engines.torch_runtime.waiting_threads import use_passive_wait_policy
from services.replica.engine.hang_watch import HangWatch, end_process
from services.replica.own_threads import claim_threads
from services.replica.ray_worker.spare import has_gpu, start_spare_worker
from services.replica.reporting.load import ReplicaLoad
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.catalog import REPLICA_METRICS
from services.telemetry.logs import configure_logging
from services.telemetry.ray_recorder import RayRecorder
from services.telemetry.tracing import TracingSettings, tracing_from_settings


def settings_here(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with this node's facts: its address, and a generation to simulate, if any."""
    import ray

    simulated = ray.get_runtime_context().get_node_labels().get(SIMULATED_LABEL, "")
    # The address that nodes of this cluster reach each other at.
    named = settings.get("announced_host") or ray.util.get_node_ip_address()
    here = {"announced_host": f"[{named}]" if ":" in named else named}
    return settings | here | ({"generation_override": simulated} if simulated else {})


class ReplicaDeployment:
    """What Serve constructs in the actor; its methods are Serve's hooks."""

    async def __init__(self, settings: dict[str, Any]) -> None:  # type: ignore[misc] # Serve awaits
        """Start the replica: Serve counts it as running when this returns."""
        from ray import serve

        configure_logging("replica")
        given = ReplicaSettings(**settings_here(settings))
        claim_threads(given.num_threads)
        use_passive_wait_policy()
        await asyncio.to_thread(prepare_compile_cache, given.cache_dir)
        context = serve.get_replica_context()
        self._tracing = tracing_from_settings(read_settings(TracingSettings), "smelt-replica")
        self._server = ReplicaServer(
            given,
            RayRecorder(REPLICA_METRICS),
            replica_id=context.replica_id.to_full_id_str(),
            tracing=self._tracing,
        )
        await self._server.start()
        self._load = ReplicaLoad(lambda: self._server.replica.batcher_times)
        self._watch = HangWatch(self._server.replica, end_process)
        self._watch.start()
        tune_for_serving()
        if has_gpu():
            # Not before: it takes processors that this engine's load needed.
            self._spare = asyncio.create_task(asyncio.to_thread(start_spare_worker))

    async def check_health(self) -> None:
        """Raise when Serve must replace this replica."""
        await self._server.check_health()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve gives to `scaling.wanted_replicas`."""
        return await asyncio.to_thread(self._load.sample)

    async def __del__(self) -> None:
        """Drain and close; Serve awaits it before it ends the actor."""
        # Serve calls this also when the constructor failed.
        server = getattr(self, "_server", None)
        if server is not None:
            await server.stop()
            if self._tracing:
                await asyncio.to_thread(self._tracing.close)
