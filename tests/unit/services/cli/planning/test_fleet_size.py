"""The cheapest fleet, in cases that can be counted by hand."""

import math

import pytest

from services.cli.planning.fleet_size import cheapest_fleet
from services.cli.planning.plan_profile import DeviceOffer, ModelDemand, PlanProfile
from services.contracts.errors import InvalidRequestError

LARGE = DeviceOffer(price_per_h=4, per_node=8)
SMALL = DeviceOffer(price_per_h=1)


def nodes(
    rates: dict[str, tuple[float, ...]],
    capacities: dict[tuple[str, str], float],
    lost: int = 0,
    load: float = 1.0,
    **offers: DeviceOffer,
) -> dict[str, int]:
    demands = {name: ModelDemand(requests_per_s=1, p99_ms=9) for name in rates}
    profile = PlanProfile(models=demands, devices=offers, nodes_lost=lost, max_load=load)
    return dict(cheapest_fleet(rates, capacities, dict.fromkeys(capacities, 0.0), profile).nodes)


def test_the_better_price_for_a_request_is_taken() -> None:
    rates = {"a": (100.0,)}
    dear = {("a", "large"): 30.0, ("a", "small"): 10.0}
    assert nodes(rates, dear, large=LARGE, small=SMALL) == {"large": 0, "small": 10}
    good = {("a", "large"): 50.0, ("a", "small"): 10.0}
    single = DeviceOffer(price_per_h=4)
    assert nodes(rates, good, large=single, small=SMALL) == {"large": 2, "small": 0}


def test_what_one_generation_has_not_another_gives() -> None:
    few = SMALL.model_copy(update={"max_nodes": 4})
    single = DeviceOffer(price_per_h=4)
    capacities = {("a", "large"): 30.0, ("a", "small"): 10.0}
    assert nodes({"a": (100.0,)}, capacities, large=single, small=few) == {"large": 2, "small": 4}


def test_models_share_devices() -> None:
    rates = {"a": (5.0,), "b": (4.0,)}
    capacities = {("a", "small"): 10.0, ("b", "small"): 10.0}
    assert nodes(rates, capacities, small=SMALL) == {"small": 1}


@pytest.mark.parametrize("rate", [1e-3, 1e-9, 1e-300])
def test_a_model_that_is_hardly_asked_for_has_a_device(rate: float) -> None:
    capacities = {("a", "large"): 5000.0, ("a", "small"): 1000.0}
    offers = {"large": DeviceOffer(price_per_h=4), "small": SMALL}
    assert nodes({"a": (0.0, rate)}, capacities, 1, **offers) == {"large": 0, "small": 2}


def test_each_generation_in_use_has_nodes_to_spare() -> None:
    capacities = {("a", "large"): 50.0, ("a", "small"): 10.0}
    found = nodes({"a": (1000.0,)}, capacities, 1, large=LARGE)
    assert found == {"large": math.ceil(1000 / (8 * 50)) + 1}
    assert nodes({"a": (10.0,)}, capacities, 2, large=LARGE, small=SMALL) == {
        "large": 0,
        "small": 3,
    }


def test_devices_are_loaded_no_more_than_wanted() -> None:
    assert nodes({"a": (90.0,)}, {("a", "small"): 10.0}, 1, 0.6, small=SMALL) == {"small": 16}


def test_every_hour_is_carried_by_the_same_nodes() -> None:
    rates = {"a": (10.0, 90.0), "b": (80.0, 20.0)}
    capacities = {("a", "small"): 10.0, ("b", "small"): 10.0}
    assert nodes(rates, capacities, small=SMALL) == {"small": 11}


def test_a_solver_that_ran_out_of_time_says_nothing_of_the_offer() -> None:
    rates = {f"m{i}": (100.0 + 7 * i, 60.0 + 11 * i) for i in range(12)}
    capacities = {
        (name, device): 3.0 + i % 5 + 4.1 * (device == "large")
        for i, name in enumerate(rates)
        for device in ("small", "large")
    }
    demands = {name: ModelDemand(requests_per_s=1, p99_ms=9) for name in rates}
    profile = PlanProfile(models=demands, devices={"large": LARGE, "small": SMALL})
    with pytest.raises(InvalidRequestError, match=r"the solver found no fleet .* in 0 s"):
        cheapest_fleet(rates, capacities, dict.fromkeys(capacities, 0.0), profile, time_limit_s=0.0)


def test_ten_thousand_nodes_are_planned() -> None:
    rates = {f"m{i}": (9_990.0,) * 24 for i in range(10)}
    capacities = {(name, "small"): 10.0 for name in rates}
    found = nodes(rates, capacities, 1, small=SMALL)
    assert 9_991 <= found["small"] <= 1.005 * 9_991


def test_why_it_cannot_be_had() -> None:
    few = SMALL.model_copy(update={"max_nodes": 2})
    with pytest.raises(InvalidRequestError, match="small: 2 nodes"):
        nodes({"a": (100.0,)}, {("a", "small"): 1.0}, small=few)
