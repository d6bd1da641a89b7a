"""How many replicas serve a version on GPUs, where the recipe has `num_replicas: auto`.

One process decodes requests, forms batches and encodes answers on one core, and most engines
wait for it: on an H200 one replica kept 10 to 44 % of the GPU busy, eight 84 to 100 %
(tests/benchmarks/results/gpu/served_speed_h200_202611.md). So Ray Serve starts more of them
while requests wait, and neither the GPU nor the host's processors are the bound.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from services.contracts.model.precision_choice import AUTO
from services.contracts.model.replica_number import least_replicas

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

logger = logging.getLogger(__name__)

# More than the cores of any host feed; the room on GPUs and the processors are the bounds.
_MOST_REPLICAS = 64
# Of its time that a replica may go from one batch to the next that waits already, before more
# of them help.
_PRESSED = 0.5
# Above, another replica only takes time of the others.
_FULL = 0.9
# At most so many times as many at once: what a replica adds shows only when it serves.
_GROWTH = 2.0
# What more replicas have to add: each forms batches of its own, and smaller ones, so beyond some
# number all of them together answer less (on an H200 14 and 23 of them 0.7 and 0.5 of what 8 did).
_LEAST_GAIN = 1.05
# Of their time that replicas are to be busy after some of them were stopped.
_BUSY_AFTER_STOP = 0.6
# A replica looks five times in that time, and each second reports the mean. So what is known of a
# load is up to so old, and until then is of the number of replicas before.
_LOOK_BACK_S = 3.0
_REPORT_S = 1.0
_SETTLED_AFTER_S = 6.0
# Loads come and go; to start a replica costs more than to keep it for a while.
_STOP_AFTER_S = 600.0
# A model that loads for longer serves late; one without room never does.
_PLACED_WITHIN_S = 120.0
_FULL_FOR_S = 300.0
_LOOK_S = 5.0
_STATE = "smelt"
_POLICY: Final = "services.replica.scaling:wanted_replicas"


def number_arguments(num_replicas: int | str, num_gpus: float) -> dict[str, Any]:
    """Serve's arguments for the number of replicas: an engine on a CPU has all its cores."""
    if num_replicas != AUTO or not num_gpus:
        return {"num_replicas": least_replicas(num_replicas)}
    return {
        "autoscaling_config": {
            "min_replicas": least_replicas(num_replicas),
            "max_replicas": _MOST_REPLICAS,
            "look_back_period_s": _LOOK_BACK_S,
            "metrics_interval_s": _REPORT_S,
            "upscale_delay_s": 0.0,
            "downscale_delay_s": 0.0,
            "policy": {"policy_function": _POLICY},
        }
    }


def wanted_replicas(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Serve's policy: the number of replicas, and what it has to know the next time."""
    num_running = context.current_num_replicas
    num_targeted = context.target_num_replicas
    now_s = context.current_time or time.time()
    scaling = Scaling(**context.policy_state.get(_STATE, {}))
    # Serve asks ten times a second.
    if num_targeted > 1 and now_s - scaling.looked_s >= _LOOK_S:
        num_own = max(num_targeted - num_running, 0)
        scaling.look(now_s, do_others_wait=_num_waiting() > num_own)
    number = scaling.next_number(num_running, num_targeted, _means(context), now_s)
    return number, {_STATE: asdict(scaling)}


@dataclass
class Scaling:
    """One version's replicas over time; seconds of one clock.

    Attributes:
        num_running, num_targeted: as they were seen last.
        since_s: that they are so.
        calm_s: since when fewer are enough; None when they are not.
        full_until_s: no more are started, as the last ones found no room.
        looked_s: when it was seen last whether others wait.
        others_s: since when replicas of others have no room on a GPU; None when they have.
        num_before: how many they were before the last ones came; 0 once these were worth it.
        rate_before: calls a second that those answered, as long as they were busy.
    """

    num_running: int = 0
    num_targeted: int = 0
    since_s: float = 0.0
    calm_s: float | None = None
    full_until_s: float = 0.0
    looked_s: float = 0.0
    others_s: float | None = None
    num_before: int = 0
    rate_before: float = 0.0

    def look(self, now_s: float, *, do_others_wait: bool) -> None:
        """Take in whether replicas of others have no room on a GPU."""
        self.looked_s = now_s
        if not do_others_wait:
            self.others_s = None
        elif self.others_s is None:
            self.others_s = now_s

    def next_number(
        self, num_running: int, num_targeted: int, load: Mapping[str, float], now_s: float
    ) -> int:
        """How many are to run.

        Args:
            num_running: that serve.
            num_targeted: that Serve starts or keeps.
            load: means over those that serve of what `ReplicaLoad.sample` gives.
            now_s: the clock.
        """
        if (num_running, num_targeted) != (self.num_running, self.num_targeted):
            self.num_running = num_running
            self.num_targeted = num_targeted
            self.since_s = now_s
            self.calm_s = None
        # One of each version comes before anybody's second. What has just come waits a moment.
        is_in_the_way = self.others_s is not None and now_s - self.others_s >= 2 * _LOOK_S
        is_stuck = num_running < num_targeted and now_s - self.since_s >= _PLACED_WITHIN_S
        if num_targeted > 1 and (is_in_the_way or is_stuck):
            self.num_before = 0
            self.full_until_s = now_s + _FULL_FOR_S
            return 1 if is_in_the_way else max(num_running, 1)
        # Earlier, the means are of fewer or of more.
        is_settled = num_running == num_targeted and now_s - self.since_s >= _SETTLED_AFTER_S
        if not is_settled or self.others_s is not None:
            return num_targeted
        if load.get("pressed", 0.0) >= _PRESSED and self.num_before:
            num_before = self.num_before
            self.num_before = 0
            if _rate(num_running, load) < _LEAST_GAIN * self.rate_before:
                self.full_until_s = now_s + _FULL_FOR_S
                return num_before
        return self._settled(wanted(num_running, load), load, now_s)

    def _settled(self, number: int, load: Mapping[str, float], now_s: float) -> int:
        if number >= self.num_running:
            self.calm_s = None
            if number == self.num_running or now_s < self.full_until_s:
                return self.num_running
            self.num_before = self.num_running
            self.rate_before = _rate(self.num_running, load)
            return number
        self.num_before = 0
        self.calm_s = now_s if self.calm_s is None else self.calm_s
        return number if now_s - self.calm_s >= _STOP_AFTER_S else self.num_running


def _num_waiting() -> int:
    try:
        return num_waiting_for_gpus()
    except Exception as error:
        # An error here would end this turn of Serve's loop for every deployment.
        logger.warning("number of replicas that wait for GPUs is unknown: %r", error)
        return 0


def num_waiting_for_gpus() -> int:
    """Actors and tasks of this Ray for which no node has the GPU that they ask for."""
    from ray._private.worker import global_worker
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    state = get_cluster_resource_state(global_worker.gcs_client)
    return sum(
        pending.count
        for pending in state.pending_resource_requests
        if pending.request.resources_bundle.get("GPU")
    )


def _rate(num_running: int, load: Mapping[str, float]) -> float:
    """Calls a second that so many answer while they are busy."""
    return num_running * load["calls"] / max(load["busy"], _PRESSED)


def wanted(num_running: int, load: Mapping[str, float]) -> int:
    """The number of replicas that a load asks for.

    Args:
        num_running: that serve.
        load: means over them of what `ReplicaLoad.sample` gives; empty when unknown.
    """
    if not load:
        return num_running
    if load["pressed"] >= _PRESSED:
        # While they are busy: a load may have begun or ended within the time that this is of.
        fullest = max(load["gpu"], load["processors"]) / max(load["busy"], _PRESSED)
        growth = min(_FULL / max(fullest, _FULL / _GROWTH), _GROWTH)
        return max(_ceil(num_running * growth), num_running)
    return min(num_running, max(1, _ceil(num_running * load["busy"] / _BUSY_AFTER_STOP)))


def _ceil(number: float) -> int:
    """Without one more for what a mean is off by."""
    return math.ceil(round(number, 3))


def _means(context: "AutoscalingContext") -> dict[str, float]:
    found = context.aggregated_metrics or {}
    return {name: fmean(values.values()) for name, values in found.items() if values}
