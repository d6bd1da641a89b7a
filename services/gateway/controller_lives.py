"""Bridges the gap between one controller process and the next.

A controller that starts again knows no replica until each has attached again, which takes
them seconds; yet they serve, and their connections to this gateway are open. So for a
while the gateway keeps what the former life said and the new one has not yet mentioned.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from services.gateway.fleet_view import FleetView, Replica

logger = logging.getLogger(__name__)


class ControllerLives:
    """Completes the views of a new controller with what the last one left."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s, self._clock = grace_s, clock
        self._said = FleetView()
        self._left = FleetView()
        self._ends_s = 0.0

    @property
    def grace_left_s(self) -> float:
        """Seconds until `completed` changes by itself; 0 when it does not."""
        return max(self._ends_s - self._clock(), 0.0) if self._left.is_known else 0.0

    def hear(self, said: FleetView) -> None:
        """Take in what the controller says."""
        if self._said.is_known and said.process_id != self._said.process_id:
            self._begin_grace(said)
        self._said = said
        # Once mentioned by the new life, a replica is in its hands alone.
        self._left = replace(self._left, replicas=_without(self._left.replicas, said.replicas))

    def completed(self) -> FleetView:
        """The fleet as it is to be taken now."""
        if self.grace_left_s == 0.0:
            self._left = FleetView()
        said = self._said
        return replace(
            said,
            models=said.models or self._left.models,
            replicas={**self._left.replicas, **said.replicas},
        )

    def _begin_grace(self, said: FleetView) -> None:
        # Controllers may follow each other faster than replicas attach: nothing is lost then.
        replicas = {**self._left.replicas, **self._said.replicas}
        self._left = replace(self._said, replicas=replicas)
        self._ends_s = self._clock() + self._grace_s
        logger.warning(
            "controller %d follows %d: its replicas are kept for %.0f s until they attach again",
            said.process_id, self._said.process_id, self._grace_s,
        )  # fmt: skip


def _without(
    replicas: Mapping[str, Replica], mentioned: Mapping[str, Replica]
) -> dict[str, Replica]:
    return {name: replica for name, replica in replicas.items() if name not in mentioned}
