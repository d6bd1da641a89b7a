"""Which replica of a pool gets a request."""

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.gateway.routing.endpoint_weights import cumulative_shares
from services.gateway.upstream.endpoint import Endpoint


class Choice(NamedTuple):
    """Endpoints to choose from, and the upper ends of their shares of [0, 1), if they differ."""

    endpoints: tuple[Endpoint, ...]
    shares: tuple[float, ...] = ()


def choice_of(endpoints: Sequence[Endpoint]) -> Choice:
    """A choice by what the endpoints cost; they are weighed already."""
    return Choice(tuple(endpoints), cumulative_shares(endpoints))


def choose(choice: Choice, draw: Callable[[], float] = random.random) -> Endpoint:
    """The less loaded of two endpoints drawn at random; `draw` gives numbers in [0, 1).

    Two draws keep many gateways from all picking the same idle replica, which the least
    loaded of all would make them do. Where endpoints differ in speed, the faster ones are
    drawn more often, and have to be more loaded before they count as such.
    """
    endpoints, shares = choice
    num = len(endpoints)
    if num == 1:
        return endpoints[0]
    if shares:
        return _choose_by_share(endpoints, shares, draw)
    first = int(draw() * num)
    second = int(draw() * (num - 1))
    second += second >= first
    one = endpoints[first]
    other = endpoints[second]
    return other if other.num_outstanding < one.num_outstanding else one


def _choose_by_share(
    endpoints: tuple[Endpoint, ...], shares: tuple[float, ...], draw: Callable[[], float]
) -> Endpoint:
    first = bisect_right(shares, draw())
    # The second is drawn from what the first one leaves.
    begin = shares[first - 1] if first else 0.0
    width = shares[first] - begin
    at = draw() * (1.0 - width)
    second = bisect_right(shares, at + width if at >= begin else at)
    # Rounding may leave the first one again, or none.
    if second == first or second == len(endpoints):
        second = (first + 1) % len(endpoints)
    one = endpoints[first]
    other = endpoints[second]
    is_other_less = (other.num_outstanding + 1) * other.cost < (one.num_outstanding + 1) * one.cost
    return other if is_other_less else one


def others_than(
    tried: Sequence[Endpoint], endpoints: tuple[Endpoint, ...], *, is_lost: bool
) -> tuple[Endpoint, ...]:
    """The replicas to retry on.

    A host that goes down takes its replicas with it one by one, and so does a device's driver:
    for some moments the other replicas of a lost one's host only look reachable.

    Args:
        tried: the replicas that were asked, the last one last; not empty.
        endpoints: of the pool.
        is_lost: the last connection broke: replicas of other hosts are preferred, then those of
            other generations.

    Returns:
        May be empty.
    """
    others = tuple(endpoint for endpoint in endpoints if endpoint not in tried)
    if not is_lost:
        return others
    lost = tried[-1].replica
    elsewhere = tuple(each for each in others if each.replica.host_id != lost.host_id)
    unlike = tuple(each for each in others if each.replica.generation != lost.generation)
    return elsewhere or unlike or others
