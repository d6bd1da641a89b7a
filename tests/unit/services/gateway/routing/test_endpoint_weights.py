"""How much of the load each replica shall get."""

from collections.abc import Callable

import pytest

from services.gateway.routing.endpoint_weights import (
    cumulative_shares,
    speed_weights,
    warmth,
    weigh,
)
from services.gateway.upstream.endpoint import Endpoint

NewEndpoint = Callable[..., Endpoint]


@pytest.mark.parametrize(
    ("curves", "weights"),
    [
        ([], []),
        ([{}, {}], [1.0, 1.0]),
        ([{"b1": 100.0}, {"b1": 400.0}], [0.25, 1.0]),
        # By shapes that both have: an engine that was also measured at larger ones gains nothing.
        ([{"b1": 100.0}, {"b1": 100.0, "b8": 900.0}], [1.0, 1.0]),
        ([{"b1": 100.0, "b8": 400.0}, {"b1": 400.0, "b8": 400.0}], [0.5, 1.0]),
        # None in common: each by what there is.
        ([{"b1": 100.0}, {"b8": 200.0}], [0.5, 1.0]),
        # Nothing measured: no faster than the slowest that was.
        ([{"b1": 100.0}, {}, {"b1": 400.0}], [0.25, 0.25, 1.0]),
        ([{"b1": 1.0}, {"b1": 1e6}], [0.01, 1.0]),
    ],
)
def test_speeds(curves: list[dict[str, float]], weights: list[float]) -> None:
    assert speed_weights(curves) == pytest.approx(weights)


@pytest.mark.parametrize(
    ("age_s", "slow_start_s", "found"),
    [(0.0, 10.0, 0.1), (0.9, 10.0, 0.1), (5.0, 10.0, 0.6), (9.9, 10.0, 1.0), (0.0, 0.0, 1.0)],
)
def test_warmth_grows(age_s: float, slow_start_s: float, found: float) -> None:
    assert warmth(age_s, slow_start_s) == pytest.approx(found)


def test_a_new_replica_gets_less_until_it_is_warm(new_endpoint: NewEndpoint) -> None:
    old, new = new_endpoint("old"), new_endpoint("new")
    old.opened_s, new.opened_s = 0.0, 100.0
    for age_s, share in ((0.0, 1 / 1.1), (5.0, 1 / 1.6), (20.0, None)):
        weigh([old, new], 100.0 + age_s, 10.0)
        shares = cumulative_shares([old, new])
        assert shares == (() if share is None else pytest.approx((share, 1.0)))


def test_where_all_are_new_none_is_spared(new_endpoint: NewEndpoint) -> None:
    endpoints = [new_endpoint("a"), new_endpoint("b")]
    for endpoint in endpoints:
        endpoint.opened_s = 100.0
    weigh(endpoints, 100.0, 10.0)
    assert [each.cost for each in endpoints] == [1.0, 1.0]
    assert cumulative_shares(endpoints) == ()


def test_a_faster_engine_costs_less(new_endpoint: NewEndpoint) -> None:
    slow, fast = new_endpoint("a", speeds={"b1": 10.0}), new_endpoint("b", speeds={"b1": 40.0})
    weigh([slow, fast], 0.0, 0.0)
    assert (slow.weight, slow.cost, fast.weight, fast.cost) == (0.25, 4.0, 1.0, 1.0)
    assert cumulative_shares([slow, fast]) == pytest.approx((0.2, 1.0))


def test_a_stand_in_gets_less_beside_a_fallback_and_hardly_any_beside_a_proven_engine(
    new_endpoint: NewEndpoint,
) -> None:
    interim, other = new_endpoint("a", is_interim=True), new_endpoint("b", is_interim=True)
    compiled, proven = new_endpoint("c"), new_endpoint("d", speeds={"b1": 40.0})
    weigh([interim, compiled], 0.0, 0.0)
    assert cumulative_shares([interim, compiled]) == pytest.approx((0.2, 1.0))
    weigh([interim, proven], 0.0, 0.0)
    assert cumulative_shares([interim, proven]) == pytest.approx((0.01 / 1.01, 1.0))
    weigh([interim, other], 0.0, 0.0)
    assert (cumulative_shares([interim, other]), interim.cost) == ((), other.cost)
