"""The cheapest devices that carry all models in each hour: a mixed-integer linear programme.

x[h, m, g]: devices of generation g that model m needs in hour h. n[g]: nodes.

    least        sum of price x devices
    such that    every model has what it needs: sum over g of capacity[m, g] x >= rate[m, h]
                 there is room:                 sum over m of x <= room[g] (n[g] - lost u[g])
                 u is 1 where g is used:        n[g] <= most[g] u[g]

room[g] is max_load times the devices of a node. A model that shares a device with others counts
as if each had a device of its own for its part of the time, so that the p99 of a device which
several share is a little worse than planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from services.cli.planning.plan_profile import DeviceOffer, PlanProfile
from services.contracts.errors import InvalidRequestError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Capacities = Mapping[tuple[str, str], float]
_MOST_NODES = 100_000
# A solution so near to the best is as good; the last percents may take hours.
_GAP = 0.005
# A status of scipy.optimize.milp: iterations or time.
_AT_LIMIT = 1
_TRACE = 1e-6


@dataclass(frozen=True, kw_only=True)
class FleetSize:
    """What a plan buys.

    Attributes:
        nodes: by generation.
        used: devices that each model keeps busy on each generation, by both, in the hour that has
            most of them.
        price_per_h: of all nodes.
    """

    nodes: Mapping[str, int]
    used: Mapping[tuple[str, str], float]
    price_per_h: float


def cheapest_fleet(
    rates: Mapping[str, Sequence[float]],
    capacities: Capacities,
    profile: PlanProfile,
    time_limit_s: float = 20.0,
) -> FleetSize:
    """The cheapest nodes that carry every hour.

    Args:
        rates: requests per second by model, one for each hour.
        capacities: requests per second of a whole device, by model and generation; some above 0.
        profile: with the devices that can be had.
        time_limit_s: of the solver.

    Raises:
        InvalidRequestError: no number of the offered nodes is enough, or it took too long.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    offers = profile.devices
    pairs = sorted(pair for pair in capacities if capacities[pair] > 0 and pair[1] in offers)
    num_hours = len(next(iter(rates.values())))
    num_x = num_hours * len(pairs)
    most = [offer.max_nodes or _MOST_NODES for offer in offers.values()]
    rows = _model_rows(rates, pairs, capacities)
    least = [rate for of_hours in zip(*rates.values(), strict=True) for rate in of_hours]
    rows += _room_rows(pairs, profile, num_hours)
    rows += [{num_x + g: -1, num_x + len(most) + g: limit} for g, limit in enumerate(most)]
    least += [0.0] * (len(rows) - len(least))
    # A device in use costs nothing beside its node; a trace of a price keeps models on few.
    prices = [_TRACE] * num_x + [o.price_per_h * o.per_node for o in offers.values()]
    found = milp(
        np.array(prices + [0.0] * len(most)),
        integrality=np.array([0] * num_x + [1] * 2 * len(most)),
        bounds=Bounds(0, [np.inf] * num_x + most + [1] * len(most)),
        constraints=LinearConstraint(_matrix(rows, num_x + 2 * len(most)), least),
        options={"time_limit": time_limit_s, "mip_rel_gap": _GAP},
    )
    if found.status == _AT_LIMIT:
        raise InvalidRequestError(
            f"the solver found no fleet that is surely within {_GAP:.1%} of the cheapest in "
            f"{time_limit_s:g} s: offer fewer generations, or plan models apart"
        )
    if found.x is None:
        raise InvalidRequestError(_too_few(offers))
    nodes = {name: round(found.x[num_x + g]) for g, name in enumerate(offers)}
    by_hour = found.x[:num_x].reshape(num_hours, len(pairs))
    peak = by_hour[int(np.argmax(by_hour.sum(axis=1)))].tolist()
    return FleetSize(
        nodes=nodes,
        used={pair: used for pair, used in zip(pairs, peak, strict=True) if used > _TRACE},
        price_per_h=sum(n * offers[g].per_node * offers[g].price_per_h for g, n in nodes.items()),
    )


def _model_rows(
    rates: Mapping[str, Sequence[float]],
    pairs: Sequence[tuple[str, str]],
    capacities: Capacities,
) -> list[dict[int, float]]:
    """For each hour and model: what its devices can do, by place of x."""
    num_hours = len(next(iter(rates.values())))
    return [
        {
            hour * len(pairs) + i: capacities[pair]
            for i, pair in enumerate(pairs)
            if pair[0] == model
        }
        for hour in range(num_hours)
        for model in rates
    ]


def _room_rows(
    pairs: Sequence[tuple[str, str]],
    profile: PlanProfile,
    num_hours: int,
) -> list[dict[int, float]]:
    """For each hour and generation: devices of its nodes, less lost and used ones."""
    num_x = num_hours * len(pairs)
    rows = []
    for hour in range(num_hours):
        for g, (name, offer) in enumerate(profile.devices.items()):
            room = profile.max_load * offer.per_node
            used = {hour * len(pairs) + i: -1.0 for i, p in enumerate(pairs) if p[1] == name}
            lost = {num_x + len(profile.devices) + g: -room * profile.nodes_lost}
            rows.append(used | lost | {num_x + g: room})
    return rows


def _matrix(rows: Sequence[Mapping[int, float]], num_columns: int) -> "csr_array":
    from scipy.sparse import csr_array

    entries = [(r, c, value) for r, row in enumerate(rows) for c, value in row.items()]
    places_r, places_c, values = zip(*entries, strict=True)
    return csr_array((values, (places_r, places_c)), shape=(len(rows), num_columns))


def _too_few(offers: Mapping[str, DeviceOffer]) -> str:
    nodes = ", ".join(f"{g}: {o.max_nodes or 'any number of'} nodes" for g, o in offers.items())
    return (
        f"the offered nodes are too few ({nodes}): raise max_nodes or max_load, or lower nodes_lost"
    )
