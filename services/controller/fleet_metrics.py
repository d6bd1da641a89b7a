"""What the controller knows of replicas, as gauges: wanted, attached, and what they serve with."""

from collections import Counter

from services.contracts.hardware import DeviceFacts
from services.controller.fleet_state import FleetState
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry import catalog
from services.telemetry.recorder import Recorder
from services.telemetry.shown_gauge import ShownGauge


class FleetMetrics:
    """Shows each state of the fleet."""

    def __init__(self, recorder: Recorder) -> None:
        self._wanted = ShownGauge(recorder, catalog.REPLICAS_WANTED)
        self._attached = ShownGauge(recorder, catalog.REPLICAS_ATTACHED)

    async def follow(self, state: FleetState) -> None:
        """Show the state now and after each change, until cancelled."""
        async for snapshot in state.watch():
            self.show(snapshot)

    def show(self, snapshot: fleet.FleetSnapshot) -> None:
        """Show one state."""
        self._wanted.show(
            {(m.name, str(m.version)): m.num_replicas_wanted for m in snapshot.models}
        )
        self._attached.show(Counter(_place(report) for report in snapshot.replicas))


def _place(report: fleet.ReplicaReport) -> tuple[str, ...]:
    """Values of the labels of REPLICAS_ATTACHED, in their order."""
    facts = report.device_facts_json
    return (
        report.model_name,
        str(report.model_version),
        DeviceFacts.from_json(facts).generation if facts else "",
        report.engine_kind,
        fleet.ReplicaState.Name(report.state).removeprefix("REPLICA_STATE_").lower(),
    )
