"""How much of a model's load each of its replicas shall get, relative to the others.

Two things weigh: how fast the engine was when it was proven, as the replica reports it, and how
long ago the replica became ready. All of it is done once for each routing table, not for
each request.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from services.gateway.upstream.endpoint import Endpoint

# The slowest still gets some requests: what was measured alone may differ from what is served.
_LEAST_WEIGHT: Final = 0.01
# Of a stand-in for a fallback that is being compiled: it shares the processors with the compiler.
# No less, or the replica that has compiled first would get the load of all.
_INTERIM_WEIGHT: Final = 0.25
# Warming goes by steps, so that replicas that came together stay equal and tables are few.
NUM_WARMING_STEPS: Final = 10


def weigh(endpoints: Sequence[Endpoint], now_s: float, slow_start_s: float) -> None:
    """Set weight and cost of the endpoints of one pool.

    Args:
        endpoints: of one model version.
        now_s: seconds of the clock by which they were born.
        slow_start_s: how long one that became ready gets less than its share; 0 for none.
    """
    warmths = [warmth(now_s - each.opened_s, slow_start_s) for each in endpoints]
    # Where all are new, it would spare none of them.
    warmest = max(warmths, default=1.0)
    speeds = speed_weights([each.replica.speeds for each in endpoints])
    is_proven_there = any(each.replica.speeds for each in endpoints)
    for endpoint, speed, warm in zip(endpoints, speeds, warmths, strict=True):
        is_interim = endpoint.replica.is_interim
        # On a GPU's host it may be a hundred times slower than a proven engine.
        slow = _LEAST_WEIGHT if is_proven_there else _INTERIM_WEIGHT
        endpoint.weight = min(slow, speed) if is_interim else speed
        endpoint.cost = warmest / (endpoint.weight * warm)


def speed_weights(curves: Sequence[Mapping[str, float]]) -> list[float]:
    """The speed of each relative to the fastest, which has 1.0.

    Compared at the shapes that all known curves have, by their geometric mean. Where nothing
    was measured, as for a fallback, the slowest known speed is taken: engines are
    chosen because they are faster than the fallback.
    """
    known = [set(curve) for curve in curves if curve]
    if not known:
        return [1.0] * len(curves)
    common = set.intersection(*known)
    means = [_mean(curve, common) for curve in curves]
    slowest = min(filter(None, means))
    fastest = max(means)
    # Rounded, so that rounding makes no difference between equals.
    return [max(round((mean or slowest) / fastest, 6), _LEAST_WEIGHT) for mean in means]


def warmth(age_s: float, slow_start_s: float) -> float:
    """From one step of NUM_WARMING_STEPS at birth up to 1.0 after `slow_start_s`."""
    if slow_start_s <= 0 or age_s >= slow_start_s:
        return 1.0
    return (int(age_s / slow_start_s * NUM_WARMING_STEPS) + 1) / NUM_WARMING_STEPS


def cumulative_shares(endpoints: Sequence[Endpoint]) -> tuple[float, ...]:
    """Upper ends of the endpoints' shares of [0, 1); empty when all are equal or there is one."""
    weights = [1.0 / each.cost for each in endpoints]
    if len(set(weights)) < 2:
        return ()
    return ends_of_shares(weights)


def ends_of_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """The upper ends of the parts of [0, 1) that are in proportion to weights."""
    total = sum(weights)
    reached = 0.0
    ends = []
    for weight in weights:
        reached += weight / total
        ends.append(reached)
    # Rounding must not leave a number below 1 that belongs to no endpoint.
    ends[-1] = 1.0
    return tuple(ends)


def _mean(curve: Mapping[str, float], common: set[str]) -> float:
    """Geometric mean, 0 for an empty curve; of engines without a common shape, that of all."""
    speeds = [curve[shape] for shape in common if shape in curve] or list(curve.values())
    return math.exp(sum(map(math.log, speeds)) / len(speeds)) if speeds else 0.0
