"""What the controller knows of replicas, as gauges: wanted, attached, and what they serve with."""

import logging
from collections import Counter

from services.controller.api.fleet_state import FleetState, generation_of
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry import catalog
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge

logger = logging.getLogger(__name__)


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
                logger.exception("the fleet is not shown now; its next change tries again")

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
