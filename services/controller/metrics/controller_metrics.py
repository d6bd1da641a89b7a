"""The controller's /metrics: what it knows of replicas, builds and the store."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from services.contracts.errors import InvalidRequestError
from services.contracts.store.artifact_store import ArtifactStore
from services.contracts.store.history import BuildHistory
from services.controller.api.fleet_state import FleetState, generation_of
from services.controller.metrics.build_metrics import BuildMetrics, LatestView
from services.controller.settings import ControllerSettings
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry import catalog
from services.telemetry.catalog import CONTROLLER_METRICS
from services.telemetry.measured_store import MeasuredStore
from services.telemetry.prometheus_recorder import MetricsServer, PrometheusRecorder, serve_metrics
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from services.controller.page.page_app import Seen


class ControllerMetrics:
    """Records and serves CONTROLLER_METRICS.

    Attributes:
        recorder: for other parts of this process.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._collectors = CollectorRegistry()
        self.recorder = PrometheusRecorder(CONTROLLER_METRICS, self._collectors)
        self._server: MetricsServer | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def measured(self, store: ArtifactStore) -> ArtifactStore:
        """The store, with its requests counted."""
        return MeasuredStore(store, self.recorder)

    def start(
        self,
        state: FleetState,
        latest: LatestView,
        store: ArtifactStore,
        page_of: "Callable[[Callable[[], Seen]], WSGIApplication]",
    ) -> int:
        """Serve, and keep up with fleet and store; returns the port.

        Args:
            state: of the fleet.
            latest: what the store holds, as it was read last; may block.
            store: whose history is counted.
            page_of: makes the page of this port, which is given what was seen last.

        Raises:
            InvalidRequestError: the port is not available.
        """
        fleet_metrics = FleetMetrics(self.recorder)
        builds = BuildMetrics(self.recorder, BuildHistory(store), latest)
        page = page_of(lambda: (fleet_metrics.seen, builds.seen))
        host = self._settings.metrics_host
        port = self._settings.metrics_port
        try:
            self._server = serve_metrics(port, self._collectors, address=host, elsewhere=page)
        except OSError as error:
            raise InvalidRequestError(
                f"controller cannot serve metrics on {host}:{port}: {error}; choose another "
                "SMELT_CONTROLLER_METRICS_PORT, 0 takes a free one"
            ) from error
        self._tasks = (
            asyncio.create_task(fleet_metrics.follow(state)),
            asyncio.create_task(builds.follow(self._settings.resync_s)),
        )
        return self._server.port

    async def stop(self) -> None:
        """Let go of the port."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._server:
            await asyncio.to_thread(self._server.close)


class FleetMetrics:
    """Shows each state of the fleet.

    Attributes:
        seen: the last of them.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.seen: fleet.FleetSnapshot | None = None
        self._wanted = ShownGauge(recorder, catalog.REPLICAS_WANTED)
        self._unplaced = ShownGauge(recorder, catalog.MODELS_UNPLACED)
        self._attached = ShownGauge(recorder, catalog.REPLICAS_ATTACHED)

    async def follow(self, state: FleetState) -> None:
        """Show the state now and after each change, until cancelled."""
        async for snapshot in state.watch():
            self.seen = snapshot
            try:
                self.show(snapshot)
            except Exception:
                # Whatever it is: figures that stand still look as if all were well.
                logger.exception("fleet metrics are not updated; retrying at the next change")

    def show(self, snapshot: fleet.FleetSnapshot) -> None:
        """Show one state."""
        self._wanted.show(
            {(m.name, str(m.version)): m.num_replicas_wanted for m in snapshot.models}
        )
        self._unplaced.show(
            {(m.name, str(m.version)): float(bool(m.unplaced)) for m in snapshot.models}
        )
        self._attached.show(Counter(_place(report) for report in snapshot.replicas))


def _place(report: fleet.ReplicaReport) -> tuple[str, ...]:
    """Values of the labels of REPLICAS_ATTACHED, in their order."""
    return (
        report.model_name,
        str(report.model_version),
        generation_of(report),
        report.engine_kind,
        fleet.ReplicaState.Name(report.state).removeprefix("REPLICA_STATE_").lower(),
        report.fallback_reason,
    )
