"""How many replicas serve a version on GPUs, where the recipe has `num_replicas: auto`.

One process decodes requests, forms batches and encodes answers on one core, and most engines
wait for it: on an H200 one replica kept 13 to 48 % of the GPU busy, four 56 to 100 %
(tests/benchmarks/results/gpu/served_speed_h200_202611.md). So Ray Serve starts more of them
while requests wait, and neither the GPU nor the host's processors are the bound.
"""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from services.contracts.model.precision_choice import AUTO
from services.contracts.model.replica_number import least_replicas

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

# More than the cores of any host feed; the room on GPUs and the processors are the bounds.
_MOST_REPLICAS = 64
# Of its time that a replica may go from one batch to the next that waits already, before more
# of them help.
_PRESSED = 0.5
# Above, another replica only takes time of the others.
_FULL = 0.9
# At most so many times as many at once: what a replica adds shows only when it serves.
_GROWTH = 2.0
# Of their time that replicas are to be busy after some of them were stopped.
_BUSY_AFTER_STOP = 0.6
# A replica looks each second, and each 10 s reports the mean of the last ones. So what is known of
# a load is up to so old, and until then is of the number of replicas before.
_LOOK_BACK_S = 5.0
_SETTLED_AFTER_S = 16.0
_STOP_AFTER_S = 600.0
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
            "upscale_delay_s": 0.0,
            "downscale_delay_s": _STOP_AFTER_S,
            "policy": {"policy_function": _POLICY},
        }
    }


def wanted_replicas(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Serve's policy: the number of replicas, and since when there are as many as now."""
    number = context.current_num_replicas
    now_s = context.current_time or 0.0
    state = {"number": number, "since_s": now_s}
    if context.policy_state.get("number") == number == context.target_num_replicas:
        state["since_s"] = context.policy_state["since_s"]
    if now_s - state["since_s"] < _SETTLED_AFTER_S:
        return context.target_num_replicas, state
    return wanted(number, _means(context)), state


def wanted(num_running: int, load: Mapping[str, float]) -> int:
    """The number of replicas that a load asks for.

    Args:
        num_running: that serve.
        load: means over them of what `ReplicaLoad.sample` gives; empty when unknown.
    """
    if not load:
        return num_running
    if load["pressed"] >= _PRESSED:
        fullest = max(load["gpu"], load["processors"])
        growth = min(_FULL / max(fullest, _FULL / _GROWTH), _GROWTH)
        return max(_ceil(num_running * growth), num_running)
    return min(num_running, max(1, _ceil(num_running * load["busy"] / _BUSY_AFTER_STOP)))


def _ceil(number: float) -> int:
    """Without one more for what a mean is off by."""
    return math.ceil(round(number, 3))


def _means(context: "AutoscalingContext") -> dict[str, float]:
    found = context.aggregated_metrics or {}
    return {name: fmean(values.values()) for name, values in found.items() if values}
