"""The cheapest devices that carry all models in each hour: a mixed-integer linear programme.

x[h, m, g]: devices of generation g that model m needs in hour h. n[g]: nodes.

    least        sum of price x devices
    such that    every model has what it needs: sum over g of capacity[m, g] x >= rate[m, h]
                 there is room:                 sum over m of x <= max_load d[g]
                 and memory for one replica:    sum over m of share[m, g] y[m, g] <= d[g]
                 y is 1 where m is on g:        x[h, m, g] <= most[m, g] y[m, g]
                 u is 1 where g is used:        n[g] <= most[g] u[g]

d[g] = per_node[g] (n[g] - lost u[g]): the devices of the nodes that are left. What this leaves open
is which models share a device: where those of a solution do not fit together, the next dearer one
is asked for (`fleet_plan.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from services.cli.planning.placement import GAP, TRACE, Pair
from services.cli.planning.plan_profile import MOST_NODES, DeviceOffer, PlanProfile
from services.contracts.errors import InvalidRequestError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Of a device, that a model which is asked for at all keeps busy: less is nothing to the solver,
# which would buy no device for a request an hour.
_LEAST_BUSY = 1e-4
# A status of scipy.optimize.milp: iterations or time.
_AT_LIMIT = 1


@dataclass(frozen=True, kw_only=True)
class FleetSize:
    """What a plan buys, before models are placed on devices.

    Attributes:
        nodes: by generation.
        used: devices that each model keeps busy on each generation, by both, hour by hour.
        price_per_h: of all nodes.
    """

    nodes: Mapping[str, int]
    used: Sequence[Mapping[Pair, float]]
    price_per_h: float


class _Programme:
    """Rows of the programme, by place of the variables x, n, u and y."""

    def __init__(
        self,
        rates: Mapping[str, Sequence[float]],
        capacities: Mapping[Pair, float],
        shares: Mapping[Pair, float],
        profile: PlanProfile,
    ) -> None:
        self.pairs = sorted(p for p in capacities if capacities[p] > 0 and p[1] in profile.devices)
        self.num_hours = len(next(iter(rates.values())))
        self.num_x = self.num_hours * len(self.pairs)
        most = {
            model: max(capacity for (name, _), capacity in capacities.items() if name == model)
            for model in rates
        }
        self._rates = {
            model: [rate and max(rate, _LEAST_BUSY * most[model]) for rate in each]
            for model, each in rates.items()
        }
        self._capacities = capacities
        self._shares = shares
        self._profile = profile
        self._num_g = len(profile.devices)
        self.num_columns = self.num_x + 2 * self._num_g + len(self.pairs)

    def x_of(self, hour: int, pair: int) -> int:
        return hour * len(self.pairs) + pair

    def rows(self, least_price: float) -> tuple[list[dict[int, float]], list[float]]:
        """All rows, and what each is at least."""
        needs = [
            {
                self.x_of(hour, i): self._capacities[pair]
                for i, pair in enumerate(self.pairs)
                if pair[0] == model
            }
            for hour, model in product(range(self.num_hours), self._rates)
        ]
        least = [self._rates[m][hour] for hour, m in product(range(self.num_hours), self._rates)]
        rows = needs + self._rooms() + self._presence()
        least += [0.0] * (len(rows) - len(least))
        offers = self._profile.devices.values()
        price = {self.num_x + g: o.price_per_h * o.per_node for g, o in enumerate(offers)}
        return [*rows, price], [*least, least_price]

    def _rooms(self) -> list[dict[int, float]]:
        """Of each generation: time in each hour, memory, and most nodes."""
        rows = []
        for g, (name, offer) in enumerate(self._profile.devices.items()):
            nodes = self.num_x + g
            is_used = nodes + self._num_g
            lost = float(self._profile.nodes_lost * offer.per_node)
            devices = {nodes: float(offer.per_node), is_used: -lost}
            here = [i for i, pair in enumerate(self.pairs) if pair[1] == name]
            room = {place: self._profile.max_load * num for place, num in devices.items()}
            rows += [
                room | {self.x_of(hour, i): -1.0 for i in here} for hour in range(self.num_hours)
            ]
            rows.append(devices | {self._y_of(i): -self._shares[self.pairs[i]] for i in here})
            rows.append({nodes: -1.0, is_used: float(offer.max_nodes or MOST_NODES)})
        return rows

    def _presence(self) -> list[dict[int, float]]:
        """A model is on a generation where it keeps something of it busy in any hour."""
        rows = []
        for i, pair in enumerate(self.pairs):
            if self._shares[pair]:
                for hour, rate in enumerate(self._rates[pair[0]]):
                    most = rate / self._capacities[pair]
                    rows.append({self._y_of(i): most, self.x_of(hour, i): -1.0})
        return rows

    def _y_of(self, pair: int) -> int:
        return self.num_x + 2 * self._num_g + pair


def cheapest_fleet(
    rates: Mapping[str, Sequence[float]],
    capacities: Mapping[Pair, float],
    shares: Mapping[Pair, float],
    profile: PlanProfile,
    *,
    least_price: float = 0.0,
    time_limit_s: float = 20.0,
) -> FleetSize:
    """The cheapest nodes that carry every hour.

    Args:
        rates: requests per second by model, one for each hour.
        capacities: requests per second of a whole device, by model and generation; some above 0.
        shares: of a GPU's memory that a replica is given, by both; 0 on CPUs.
        profile: with the devices that can be had.
        least_price: of all nodes for an hour; what is cheaper is known not to do.
        time_limit_s: of the solver.

    Raises:
        InvalidRequestError: no number of the offered nodes is enough, or it took too long.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    offers = profile.devices
    programme = _Programme(rates, capacities, shares, profile)
    num_x = programme.num_x
    most = [offer.max_nodes or MOST_NODES for offer in offers.values()]
    ones = [1] * (len(offers) + len(programme.pairs))
    rows, least = programme.rows(least_price)
    # A device in use costs nothing beside its node; a trace of a price keeps models on few.
    prices = [TRACE] * num_x + [o.price_per_h * o.per_node for o in offers.values()]
    found = milp(
        np.array(prices + [0.0] * len(ones)),
        integrality=np.array([0] * num_x + [1] * (len(most) + len(ones))),
        bounds=Bounds(0, [np.inf] * num_x + most + ones),
        constraints=LinearConstraint(_matrix(rows, programme.num_columns), least),
        options={"time_limit": time_limit_s, "mip_rel_gap": GAP},
    )
    if found.status == _AT_LIMIT:
        raise InvalidRequestError(
            f"the solver found no fleet that is surely within {GAP:.1%} of the cheapest in "
            f"{time_limit_s:g} s: offer fewer generations, or plan models apart"
        )
    if found.x is None:
        raise InvalidRequestError(too_few_words(offers))
    nodes = {name: round(found.x[num_x + g]) for g, name in enumerate(offers)}
    by_hour = found.x[:num_x].reshape(programme.num_hours, len(programme.pairs)).tolist()
    return FleetSize(
        nodes=nodes,
        used=[
            {pair: busy for pair, busy in zip(programme.pairs, each, strict=True) if busy > TRACE}
            for each in by_hour
        ],
        price_per_h=price_per_h(nodes, offers),
    )


def price_per_h(nodes: Mapping[str, int], offers: Mapping[str, DeviceOffer]) -> float:
    """Of all nodes."""
    return sum(n * offers[g].per_node * offers[g].price_per_h for g, n in nodes.items())


def too_few_words(offers: Mapping[str, DeviceOffer]) -> str:
    """Why no fleet can be had."""
    nodes = ", ".join(f"{g}: {o.max_nodes or 'any number of'} nodes" for g, o in offers.items())
    return (
        f"the offered nodes are too few ({nodes}): raise max_nodes or max_load, or lower nodes_lost"
    )


def _matrix(rows: Sequence[Mapping[int, float]], num_columns: int) -> "csr_array":
    from scipy.sparse import csr_array

    entries = [(r, c, value) for r, row in enumerate(rows) for c, value in row.items()]
    places_r, places_c, values = zip(*entries, strict=True)
    return csr_array((values, (places_r, places_c)), shape=(len(rows), num_columns))
