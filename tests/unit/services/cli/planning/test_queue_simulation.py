"""The simulated queue, beside the one case that queueing theory has a formula for."""

import math
from statistics import mean

import pytest

from services.cli.planning.curves import Curve
from services.cli.planning.device_simulation import Part, capacity, simulated
from services.cli.planning.plan_profile import ModelDemand
from services.cli.planning.queue_simulation import ReplicaQueue
from services.contracts.errors import InvalidRequestError
from services.contracts.model.recipe import Bucket, DimRange
from tests.unit.services.cli.planning.planned_model import planned_model

RUN_S = 0.01
ONE = Bucket(dims={"batch": DimRange(min=1, opt=1, max=1), "length": DimRange(min=1, opt=8, max=8)})
MANY = Bucket(
    dims={"batch": DimRange(min=1, opt=8, max=32), "length": DimRange(min=1, opt=8, max=64)}
)


def curve(*points: tuple[int, float]) -> Curve:
    found = Curve.through("engine", points)
    assert found is not None
    return found


def waits_at_most(seconds: float, rate: float) -> float:
    """The share of requests that wait so long at most in a queue M/D/1 (Erlang, 1909)."""
    load = rate * RUN_S

    def term(k: int) -> float:
        left = rate * (seconds - k * RUN_S)
        return (-left) ** k / math.factorial(k) * math.exp(left)

    return (1 - load) * math.fsum(map(term, range(int(seconds / RUN_S) + 1)))


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_without_batches_it_is_the_queue_of_the_books(load: float) -> None:
    queue = ReplicaQueue(
        planned_model(ONE), ModelDemand(requests_per_s=1, p99_ms=50), curve((8, RUN_S))
    )
    found = [simulated([Part(queue, load / RUN_S)], seed)[0] for seed in range(8)]
    late = waits_at_most(mean(f.p99_s for f in found) - RUN_S, load / RUN_S)
    assert late == pytest.approx(0.99, abs=0.004)
    # Half do not wait at all where it is idle for so long.
    usual = waits_at_most(mean(f.p50_s for f in found) - RUN_S, load / RUN_S)
    assert usual == pytest.approx(max(0.5, 1 - load), abs=0.02)
    assert mean(f.busy for f in found) == pytest.approx(load, rel=0.03)
    assert found[0].mean_rows == 1


def test_shares_of_sizes_may_be_counts_of_any_size() -> None:
    demand = ModelDemand(requests_per_s=1, p99_ms=31, sizes={"length": {3: 1e308, 4: 1e308}})
    queue = ReplicaQueue(planned_model(MANY), demand, curve((64, 0.005), (2048, 0.02)))
    assert queue.shares == [0.5, 0.5]


def test_capacity_is_where_the_p99_is_as_allowed() -> None:
    demand = ModelDemand(requests_per_s=1, p99_ms=31, overhead_ms=1)
    queue = ReplicaQueue(planned_model(MANY), demand, curve((64, 0.005), (2048, 0.02)))
    most = capacity(queue)
    assert simulated([Part(queue, most)])[0].p99_s == pytest.approx(0.03, rel=0.02)
    assert simulated([Part(queue, 1.1 * most)])[0].p99_s > 0.03
    # One after the other they would be 200, in full batches 1600.
    assert 200 < most < 1600


def test_nothing_keeps_what_a_lone_run_exceeds() -> None:
    demand = ModelDemand(requests_per_s=1, p99_ms=5)
    assert capacity(ReplicaQueue(planned_model(ONE), demand, curve((8, RUN_S)))) == 0


def test_a_tight_p99_allows_a_small_share_of_what_full_batches_do() -> None:
    line = curve((64, RUN_S), (2048, 1.01 * RUN_S))
    demand = ModelDemand(requests_per_s=1, p99_ms=11.6, overhead_ms=1)
    queue = ReplicaQueue(planned_model(MANY), demand, line)
    most = capacity(queue)
    # Full batches do 3,168.
    assert 0 < most < 20
    assert simulated([Part(queue, most)])[0].p99_s <= 0.0107
    assert simulated([Part(queue, 1.1 * most)])[0].p99_s > 0.0106


def test_more_rows_than_a_bucket_takes_are_refused() -> None:
    demand = ModelDemand(requests_per_s=1, p99_ms=50, rows=33)
    with pytest.raises(InvalidRequestError, match="rows: 33 is above 32, the most that its"):
        ReplicaQueue(planned_model(MANY), demand, curve((64, RUN_S), (2048, RUN_S)))


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_numbers_of_a_demand_are_finite(rate: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        ModelDemand(requests_per_s=rate, p99_ms=50)


def test_short_requests_cost_less_than_long_ones() -> None:
    def most(length: int) -> float:
        demand = ModelDemand(requests_per_s=1, p99_ms=100, sizes={"length": {length: 1, 64: 1}})
        line = curve((1, 0.001), (2048, 0.1))
        return capacity(ReplicaQueue(planned_model(MANY), demand, line))

    assert most(8) > 1.3 * most(64)


def test_a_larger_run_is_never_taken_for_a_quicker_one() -> None:
    line = curve((8, 0.02), (64, 0.01), (64, 0.03), (128, 0.05))
    assert [line.run_s(n) for n in (1, 8, 64, 96, 256)] == pytest.approx(
        [0.02, 0.02, 0.02, 0.035, 0.1]
    )


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"width": {8: 1}}, "sizes of width: expected dimensions of the model: length"),
        ({"length": {65: 1}}, "sizes.length: 65 is above 64"),
    ],
    ids=["unknown", "too_large"],
)
def test_sizes_that_the_model_does_not_take_are_named(
    sizes: dict[str, dict[int, float]], words: str
) -> None:
    demand = ModelDemand(requests_per_s=1, p99_ms=5, sizes=sizes)
    with pytest.raises(InvalidRequestError, match=words):
        ReplicaQueue(planned_model(MANY), demand, curve((8, RUN_S)))
