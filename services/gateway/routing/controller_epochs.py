"""Bridges the gap between one controller process and the next.

A controller that starts again knows no replica until each has attached again, which takes
them seconds; yet they serve, and their connections to this gateway are open. So for a
while the gateway keeps what the former process published and the new one does not list yet.

A replica that a controller has merely lost contact with is in its snapshot: see
FleetSnapshot.unseen.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from services.gateway.routing.fleet_view import DiscoveredFleet, ReplicaInfo, ServedModel

logger = logging.getLogger(__name__)

Models = Mapping[str, Mapping[int, ServedModel]]


class ControllerEpochs:
    """Completes the views of a new controller with what the last one left."""

    def __init__(self, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._current = DiscoveredFleet()
        self._former = DiscoveredFleet()
        self._ends_s = 0.0

    @property
    def grace_left_s(self) -> float:
        """Seconds until `completed` changes without an update; 0 when it does not."""
        return max(self._ends_s - self._clock(), 0.0) if self._former.is_known else 0.0

    def update(self, view: DiscoveredFleet) -> None:
        """Take over the controller's newest view."""
        if self._current.is_known and view.epoch != self._current.epoch:
            self._begin_grace(view)
        self._current = view
        # Once the new process lists a replica, that one alone decides about it.
        listed = view.replicas
        self._former = replace(self._former, replicas=_without(self._former.replicas, listed))

    def completed(self) -> DiscoveredFleet:
        """The fleet as it is to be taken now."""
        if self.grace_left_s == 0.0:
            self._former = DiscoveredFleet()
        replicas = {**self._former.replicas, **self._current.replicas}
        models = _with_served(self._current.models, self._former.models, replicas.values())
        return replace(self._current, models=models, replicas=replicas)

    def _begin_grace(self, view: DiscoveredFleet) -> None:
        # Controllers may follow each other faster than replicas attach: what one epoch left is
        # left by the next one too, and each gets the whole grace, as attaching takes as long in
        # each. One that crashes again and again prolongs it; the cost is an address that does
        # not answer.
        self._former = self.completed()
        self._ends_s = self._clock() + self._grace_s
        logger.warning(
            "controller epoch %016x follows %016x: its replicas are kept for %.0f s until they "
            "attach again",
            view.epoch,
            self._current.epoch,
            self._grace_s,
        )


def _with_served(current: Models, former: Models, replicas: Iterable[ReplicaInfo]) -> Models:
    """The models, with former versions that replicas serve; the former ones while none is listed.

    Where a RayService places replicas, a controller learns of older versions by them alone.
    """
    if not current or not former:
        return current or former
    models = {name: dict(versions) for name, versions in current.items()}
    for replica in replicas:
        name = replica.model_name
        version = replica.model_version
        if name in models and (served := former.get(name, {}).get(version)):
            models[name].setdefault(version, served)
    return models


def _without(
    replicas: Mapping[str, ReplicaInfo], listed: Mapping[str, ReplicaInfo]
) -> dict[str, ReplicaInfo]:
    return {name: replica for name, replica in replicas.items() if name not in listed}
