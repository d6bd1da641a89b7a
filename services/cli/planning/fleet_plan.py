"""The nodes of a plan: the cheapest by the programme, once its models are placed on devices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.cli.planning.device_use import DeviceUse
from services.cli.planning.fleet_size import FleetSize, cheapest_fleet, price_per_h, too_few_words
from services.cli.planning.placement import GAP, Pair, PlacedDevice, Placement, Placer
from services.cli.planning.plan_profile import PlanProfile
from services.contracts.errors import InvalidRequestError

# Where models do not fit together on the cheapest nodes, so many dearer ones are tried.
_ROUNDS = 6
# In which the next are dearer at least.
_DEARER = 1 + 1e-6
# Of replicas, where no fleet has room for all of them.
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """Nodes, and what is on the devices of those that are left when some are lost.

    Attributes:
        nodes: by generation.
        price_per_h: of all nodes.
        hours: what is on devices, of each hour that decides.
        used: devices that models keep busy, of each of these hours.
    """

    nodes: Mapping[str, int]
    price_per_h: float
    hours: Sequence[Placement]
    used: Sequence[Mapping[Pair, float]]


class FleetPlanner:
    """Plans for one profile and what devices do."""

    def __init__(self, profile: PlanProfile, uses: Mapping[Pair, DeviceUse]) -> None:
        """Take both."""
        self.placer = Placer(uses, profile.max_load)
        self._profile = profile
        self._uses = uses
        self._known: dict[tuple[tuple[float, ...], ...], FleetPlan] = {}

    def plan(self, hours: Sequence[int]) -> FleetPlan:
        """The cheapest nodes that carry these hours, whatever is asked for in others.

        Raises:
            InvalidRequestError: no number of the offered nodes is enough.
        """
        demands = self._profile.models
        asked = deciding_hours(
            [tuple(demand.rates[h] for demand in demands.values()) for h in hours]
        )
        if asked not in self._known:
            rates = dict(zip(demands, zip(*asked, strict=True), strict=True))
            self._known[asked] = self._planned(rates)
        return self._known[asked]

    def _planned(self, rates: Mapping[str, Sequence[float]]) -> FleetPlan:
        """The cheapest nodes on which models have their places, or would with some more of them."""
        capacities = {pair: use.capacity for pair, use in self._uses.items()}
        shares = {pair: use.share for pair, use in self._uses.items()}
        least_price = 0.0
        best: FleetPlan | None = None
        for _ in range(_ROUNDS):
            try:
                size = cheapest_fleet(
                    rates, capacities, shares, self._profile, least_price=least_price
                )
            except InvalidRequestError as error:
                if best:
                    break
                raise InvalidRequestError(f"{error}{self._memory_words()}") from error
            best = self._placed(size, best.price_per_h if best else math.inf) or best
            if best and best.price_per_h <= (1 + GAP) * size.price_per_h:
                break
            least_price = _DEARER * size.price_per_h
        if best is None:
            few = too_few_words(self._profile.devices)
            raise InvalidRequestError(f"{few}{self._memory_words()}")
        return best

    def _placed(self, size: FleetSize, below: float) -> FleetPlan | None:
        """With as many nodes as its models need; None where these are too many or too dear."""
        offers = self._profile.devices
        rooms = {g: self._num_left(g, num) for g, num in size.nodes.items()}
        hours = []
        nodes = dict.fromkeys(offers, 0)
        for used in size.used:
            hour = self.placer.placed(used, rooms)
            hours.append(hour)
            nodes = {g: max(num, self._num_needed(g, hour[g])) for g, num in nodes.items()}
            price = price_per_h(nodes, offers)
            if price >= below or any(
                num > (offers[g].max_nodes or num) for g, num in nodes.items()
            ):
                return None
        return FleetPlan(nodes=nodes, price_per_h=price, hours=hours, used=size.used)

    def _num_needed(self, generation: str, devices: Sequence[PlacedDevice]) -> int:
        num = sum(device.count for device in devices)
        lost = self._profile.nodes_lost if num else 0
        return math.ceil(num / self._profile.devices[generation].per_node) + lost

    def _num_left(self, generation: str, num_nodes: int) -> int:
        """Devices of the nodes that are left."""
        num = max(num_nodes - self._profile.nodes_lost, 0)
        return num * self._profile.devices[generation].per_node

    def _memory_words(self) -> str:
        """What the largest replicas need of GPUs."""
        needs = [(use.share, pair, use.memory) for pair, use in self._uses.items() if use.memory]
        largest = sorted(needs, key=lambda each: each[:2], reverse=True)[:_MOST_NAMED]
        return "".join(f"; {name} on {g}: {memory.words()}" for _, (name, g), memory in largest)


def deciding_hours(asked: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Rates of the hours that ask for more of some model than any other hour does.

    Args:
        asked: of each hour, the rates of all models.
    """
    different = sorted(set(asked), reverse=True)
    return tuple(
        one
        for one in different
        if not any(
            one != other and all(a <= b for a, b in zip(one, other, strict=True))
            for other in different
        )
    )
