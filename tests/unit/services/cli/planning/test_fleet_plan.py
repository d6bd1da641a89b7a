"""Nodes and what is on their devices, beside all ways to place small fleets."""

import math
from collections import Counter
from itertools import product
from random import Random

import pytest

from services.cli.planning.device_use import DeviceUse
from services.cli.planning.fleet_plan import FleetPlan, FleetPlanner, deciding_hours
from services.cli.planning.plan_profile import HOURS, DeviceOffer, ModelDemand, PlanProfile
from services.cli.planning.replica_memory import ReplicaMemory
from services.contracts.errors import InvalidRequestError
from tests.unit.services.cli.planning.planned_queue import planned_queue

RUN_S = 0.01
SMALL = "cuda-sm80"
LARGE = "cuda-sm90"


def use(
    share: float, capacity: float = 50, *, p99_ms: float = 1e6, run_s: float = RUN_S
) -> DeviceUse:
    memory = ReplicaMemory(share=share, needed_gib=share * 20, memory_gib=24)
    return DeviceUse(
        queue=planned_queue(run_s, p99_ms=p99_ms),
        capacity=capacity,
        memory=memory if share else None,
    )


def planner(
    uses: dict[tuple[str, str], DeviceUse],
    rates: dict[str, float | tuple[float, ...]],
    *,
    lost: int = 0,
    **offers: DeviceOffer,
) -> FleetPlanner:
    demands = {name: ModelDemand(requests_per_s=rate, p99_ms=9) for name, rate in rates.items()}
    devices = {name.replace("_", "-"): offer for name, offer in offers.items()}
    profile = PlanProfile(models=demands, devices=devices, nodes_lost=lost, max_load=1)
    return FleetPlanner(profile, uses)


def together(plan: FleetPlan, generation: str) -> list[list[str]]:
    """Models on each device."""
    (hour,) = plan.hours
    return sorted(sorted(each.pair[0] for each in device.hosted) for device in hour[generation])


def test_models_share_a_gpu_as_far_as_its_memory_goes() -> None:
    rates = dict.fromkeys("abc", 10.0)
    uses = {(name, SMALL): use(0.5) for name in rates}
    plan = planner(uses, rates, cuda_sm80=DeviceOffer(price_per_h=1)).plan([0])
    assert plan.nodes == {SMALL: 2}
    assert sorted(map(len, together(plan, SMALL))) == [1, 2]


def test_what_does_not_fit_together_is_refused_with_the_arithmetic() -> None:
    rates = dict.fromkeys("ab", 10.0)
    uses = {(name, SMALL): use(0.6) for name in rates}
    few = DeviceOffer(price_per_h=1, max_nodes=1)
    with pytest.raises(InvalidRequestError) as refused:
        planner(uses, rates, cuda_sm80=few).plan([0])
    assert "the offered nodes are too few (cuda-sm80: 1 nodes)" in str(refused.value)
    assert (
        "a on cuda-sm80: a replica needs 12.0 GiB (a CUDA context and the two largest of its "
        "engines and fallback), and asks for 0.6 of a GPU of 24 GiB"
    ) in str(refused.value)


def test_what_does_not_fit_together_goes_to_another_generation() -> None:
    """By sums three fit on two GPUs: 3 x 0.6 = 1.8. By GPUs they do not."""
    rates = dict.fromkeys("abc", 10.0)
    uses = {(name, g): use(0.6 if g == SMALL else 0.2) for name in rates for g in (SMALL, LARGE)}
    offers = {
        "cuda_sm80": DeviceOffer(price_per_h=1, max_nodes=2),
        "cuda_sm90": DeviceOffer(price_per_h=1.9),
    }
    plan = planner(uses, rates, **offers).plan([0])
    assert plan.price_per_h == pytest.approx(1.9)


def test_models_that_make_each_other_late_are_on_devices_of_their_own() -> None:
    def uses(share: float) -> dict[tuple[str, str], DeviceUse]:
        generation = SMALL if share else "cpu-x86_64-v3"
        return {
            ("a", generation): use(share, p99_ms=13),
            ("b", generation): use(share, p99_ms=1000, run_s=0.1, capacity=5),
        }

    rates = {"a": 5.0, "b": 2.0}
    plan = planner(uses(0.1), rates, cuda_sm80=DeviceOffer(price_per_h=1)).plan([0])
    assert together(plan, SMALL) == [["a"], ["b"]]
    # On a CPU replicas have threads of their own.
    cpu = {"cpu_x86_64-v3": DeviceOffer(price_per_h=1)}
    demands = {name: ModelDemand(requests_per_s=rate, p99_ms=9) for name, rate in rates.items()}
    profile = PlanProfile(
        models=demands, devices={"cpu-x86_64-v3": cpu["cpu_x86_64-v3"]}, nodes_lost=0, max_load=1
    )
    assert FleetPlanner(profile, uses(0)).plan([0]).nodes == {"cpu-x86_64-v3": 1}


@pytest.mark.parametrize("seed", range(12))
def test_small_fleets_cost_no_more_than_the_best_of_all_ways(seed: int) -> None:
    random = Random(seed)
    rates = {name: random.uniform(5, 45) for name in "abc"}
    prices = {SMALL: 1.0, LARGE: random.uniform(1.2, 2.5)}
    uses = {
        (name, g): use(random.choice((0.2, 0.4, 0.6)), 50 if g == SMALL else 100)
        for name in rates
        for g in prices
    }
    offers = {g.replace("-", "_"): DeviceOffer(price_per_h=p) for g, p in prices.items()}
    plan = planner(uses, dict(rates), **offers).plan([0])
    assert plan.price_per_h <= _least_price(rates, uses, prices) + 1e-9


def _least_price(
    rates: dict[str, float], uses: dict[tuple[str, str], DeviceUse], prices: dict[str, float]
) -> float:
    """Each model on each device, as long as its time and memory are enough."""
    best = math.inf
    devices = [(g, number) for g in prices for number in range(len(rates))]
    for chosen in product(devices, repeat=len(rates)):
        time = Counter[tuple[str, int]]()
        memory = Counter[tuple[str, int]]()
        for (name, rate), device in zip(rates.items(), chosen, strict=True):
            time[device] += rate / uses[name, device[0]].capacity  # type: ignore[assignment]
            memory[device] += uses[name, device[0]].share  # type: ignore[assignment]
        if max(*time.values(), *memory.values()) <= 1:
            best = min(best, sum(prices[g] for g, _ in set(chosen)))
    return best


def test_nodes_to_spare_hold_no_replica() -> None:
    rates = {"a": 200.0}
    plan = planner({("a", SMALL): use(0.2)}, rates, lost=1, cuda_sm80=DeviceOffer(price_per_h=1))
    found = plan.plan([0])
    assert found.nodes == {SMALL: 5}
    assert [(each.count, each.hosted[0].num_replicas) for each in found.hours[0][SMALL]] == [(4, 1)]


def test_only_hours_that_ask_for_more_than_any_other_decide() -> None:
    assert deciding_hours([(1, 1), (2, 1), (1, 2), (2, 1), (0, 2), (1, 0)]) == ((2, 1), (1, 2))
    rates: dict[str, float | tuple[float, ...]] = {
        "a": tuple(float(10 + 40 * (hour % 2)) for hour in range(HOURS)),
        "b": 20.0,
    }
    uses = {(name, SMALL): use(0.2) for name in rates}
    found = planner(uses, rates, cuda_sm80=DeviceOffer(price_per_h=1))
    assert found.plan(range(HOURS)) is found.plan([1])
    assert found.plan([1]) is found.plan([3])
    assert found.plan([0]).nodes == {SMALL: 1}
    assert found.plan([1]).nodes == {SMALL: 2}
