"""Which endpoint is chosen, by load and by share."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.routing.balancer import Choice, choice_of, choose, others_than
from services.gateway.upstream.endpoint import Endpoint

NewEndpoint = Callable[..., Endpoint]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_choice_is_the_less_loaded_of_two_different_ones(
    new_endpoint: NewEndpoint, loads: list[int], rng: Random
) -> None:
    endpoints = tuple(new_endpoint(str(i), load) for i, load in enumerate(loads))
    chosen = choose(Choice(endpoints), rng.random)
    # The most loaded endpoint cannot win, unless it is alone or has an equal.
    if len(loads) > 1 and loads.count(max(loads)) == 1:
        assert chosen.num_outstanding < max(loads)
    if len(loads) == 2:
        assert chosen.num_outstanding == min(loads)


def test_equal_replicas_are_all_used(new_endpoint: NewEndpoint) -> None:
    choice = choice_of([new_endpoint(str(number)) for number in range(4)])
    assert choice.shares == ()
    grid = [number / 40 for number in range(40)]
    picks = Counter(
        choose(choice, iter([one, other]).__next__).replica.replica_id
        for one in grid
        for other in grid
    )
    assert sorted(picks.values()) == [400, 400, 400, 400]


@given(
    st.lists(st.floats(0.01, 100.0), min_size=2, max_size=8),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_by_share_two_different_ones_are_drawn(
    new_endpoint: NewEndpoint, costs: list[float], first: float, second: float
) -> None:
    endpoints = [new_endpoint(str(number)) for number in range(len(costs))]
    for endpoint, cost in zip(endpoints, costs, strict=True):
        endpoint.cost = cost
    choice = choice_of(endpoints)
    chosen = choose(choice, iter([first, second]).__next__)
    assert chosen in endpoints
    # An endpoint that costs more than all others together wins over none of them.
    if len(choice.shares) > 1 and costs.count(max(costs)) == 1:
        assert chosen.cost < max(costs)


@pytest.mark.parametrize("num_fast", [1, 3])
def test_load_follows_speed(new_endpoint: NewEndpoint, num_fast: int) -> None:
    """Requests that stay: each endpoint fills up to its share."""
    rng, endpoints = Random(7), [new_endpoint(str(number)) for number in range(6)]
    for endpoint in endpoints[num_fast:]:
        endpoint.cost = 5.0
    choice = choice_of(endpoints)
    for _ in range(1500):
        choose(choice, rng.random).num_outstanding += 1
    loads = [endpoint.num_outstanding for endpoint in endpoints]
    one_share = 1500 / (num_fast * 5 + len(endpoints) - num_fast)
    for endpoint, load in zip(endpoints, loads, strict=True):
        assert load == pytest.approx(one_share * 5 / endpoint.cost, rel=0.15)


def test_after_a_loss_other_hosts_are_asked_if_there_are_any(new_endpoint: NewEndpoint) -> None:
    lost, neighbour = (new_endpoint(name, host_id="a") for name in ("r1", "r2"))
    far = new_endpoint("r3", host_id="b")
    everyone = (lost, neighbour, far)
    assert others_than([lost], everyone, is_lost=True) == (far,)
    assert others_than([lost], everyone, is_lost=False) == (neighbour, far)
    assert others_than([lost], (lost, neighbour), is_lost=True) == (neighbour,)
    assert others_than([lost], (neighbour, far), is_lost=True) == (far,)
    assert others_than([lost], (lost,), is_lost=True) == ()
    assert others_than([lost, far], everyone, is_lost=True) == (neighbour,)


def test_after_a_loss_other_generations_of_the_host_are_asked_first(
    new_endpoint: NewEndpoint,
) -> None:
    lost, neighbour = (new_endpoint(name, generation="cuda-sm80") for name in ("r1", "r2"))
    unlike = new_endpoint("r3", generation="cuda-sm90")
    assert others_than([lost], (lost, neighbour, unlike), is_lost=True) == (unlike,)
    assert others_than([lost], (lost, neighbour), is_lost=True) == (neighbour,)
