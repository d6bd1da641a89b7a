"""Bridges the gap between one controller process and the next.

A controller that starts again knows no replica until each has attached again, which takes
them seconds; yet they serve, and their connections to this gateway are open. So for a
while the gateway keeps what the former life said and the new one has not yet mentioned.

A controller that only lost sight of a replica says so itself: see FleetSnapshot.unseen.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from services.gateway.fleet_view import FleetView, Replica, ServedModel

logger = logging.getLogger(__name__)

Models = Mapping[str, Mapping[int, ServedModel]]


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
        if self._said.is_known and said.life_id != self._said.life_id:
            self._begin_grace(said)
        self._said = said
        # Once mentioned by the new life, a replica is in its hands alone.
        self._left = replace(self._left, replicas=_without(self._left.replicas, said.replicas))

    def completed(self) -> FleetView:
        """The fleet as it is to be taken now."""
        if self.grace_left_s == 0.0:
            self._left = FleetView()
        replicas = {**self._left.replicas, **self._said.replicas}
        models = _with_served(self._said.models, self._left.models, replicas.values())
        return replace(self._said, models=models, replicas=replicas)

    def _begin_grace(self, said: FleetView) -> None:
        # Controllers may follow each other faster than replicas attach: what one life left is
        # left by the next one too, and each gets the whole grace, as attaching takes as long in
        # each. One that crashes again and again prolongs it; all that is kept for nothing then
        # is an address at which nobody answers.
        self._left = self.completed()
        self._ends_s = self._clock() + self._grace_s
        logger.warning(
            "controller life %016x follows %016x: its replicas are kept for %.0f s until they "
            "attach again", said.life_id, self._said.life_id, self._grace_s,
        )  # fmt: skip


def _with_served(said: Models, left: Models, replicas: Iterable[Replica]) -> Models:
    """The models, with former versions of them that replicas serve; the former while none is said.

    Where a RayService places replicas, a controller learns of older versions by them alone.
    """
    if not said or not left:
        return said or left
    models = {name: dict(versions) for name, versions in said.items()}
    for replica in replicas:
        name, version = replica.model_name, replica.model_version
        if name in models and (served := left.get(name, {}).get(version)):
            models[name].setdefault(version, served)
    return models


def _without(
    replicas: Mapping[str, Replica], mentioned: Mapping[str, Replica]
) -> dict[str, Replica]:
    return {name: replica for name, replica in replicas.items() if name not in mentioned}
