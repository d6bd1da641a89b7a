"""Replicas that a RayService places: the controller shows them, and deploys none."""

from collections.abc import Callable
from typing import Any

from services.contracts.errors import UnsupportedFeatureError
from services.controller.api.fleet_state import FleetState
from services.controller.interfaces import DeploymentKey, Unplaced
from services.controller.room import Room


class PlacedByRayService:
    """A ReplicaFleet that places nothing: replicas are a RayService's, and attach."""

    is_placing = False
    absence = "no replica of it is ready; the RayService places them, from its serveConfigV2"

    def __init__(self, state: FleetState, num_wanted: Callable[[str, int], int | None]) -> None:
        """`state` has the replicas that attached; `num_wanted` how many are asked for."""
        self._state = state
        self.num_wanted = num_wanted

    def start(self) -> None:
        """Nothing to start."""

    def deploy(self, key: DeploymentKey, args: dict[str, Any]) -> None:
        """Refuse; raises UnsupportedFeatureError."""
        raise UnsupportedFeatureError(f"{key}: the RayService places replicas, not {args}")

    def deployed(self) -> list[DeploymentKey]:
        """What attached replicas serve."""
        return self._state.ready_keys()

    def is_running(self, key: DeploymentKey) -> bool:  # noqa: ARG002
        """What attached is ready."""
        return True

    def unplaced(self, key: DeploymentKey) -> Unplaced:  # noqa: ARG002
        """Nothing: what did not attach is not known here."""
        return Unplaced()

    def rooms(self) -> dict[str, Room]:
        """None: what has room is the RayService's business."""
        return {}

    def remove(self, key: DeploymentKey) -> None:
        """Nothing: the RayService's next serveConfigV2 leaves it out."""

    def metrics_addresses(self) -> list[str]:
        """None: PodMonitors find the agents."""
        return []

    def stop(self) -> None:
        """Nothing to stop."""
