"""Which lengths share a batch, at what shape it runs, and what runs are learned to cost."""

import math
import random

import pytest

from services.contracts.model.recipe import Bucket, DimRange
from services.replica.batching.batch_policy import BatchPolicy
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_cost import RunCost
from services.replica.batching.run_shapes import RunShapes, elements_of
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import text_model

MODEL = text_model()
RULES = JoinRules.from_model(MODEL, Signature.from_model(MODEL))


def _bucket(**spans: tuple[int, int]) -> Bucket:
    return Bucket(dims={d: DimRange(min=a, opt=b, max=b) for d, (a, b) in spans.items()})


LARGE = (_bucket(batch=(1, 32), sequence=(0, 512)),)


def _chosen(
    lengths: list[int],
    *,
    fixed: float = math.inf,
    max_waste: float = 0.25,
    shapes: RunShapes | None = None,
) -> list[int]:
    grouping = BatchPolicy(
        rules=RULES,
        shapes=shapes or RunShapes(RULES, LARGE),
        fixed_elements=fixed,
        max_waste=max_waste,
    )
    places = grouping.chosen([{"batch": 1, "sequence": length} for length in lengths])
    assert places == sorted(set(places))
    return [lengths[place] for place in places]


@pytest.mark.parametrize(
    ("lengths", "fixed", "max_waste", "wanted"),
    [
        ([10], math.inf, 0.25, [10]),
        # Two batches are quicker where a run costs little, one where it costs much.
        ([10, 400, 11, 390], 5, 0.9, [10, 11]),
        ([10, 400, 11, 390], 10_000, 0.9, [10, 400, 11, 390]),
        # However dear a run is, padding stays within its bound.
        ([10, 400, 11, 390], 10_000, 0.25, [10, 11]),
        ([10, 400, 390, 400, 380], 10_000, 0.25, [10, 400, 390, 400, 380]),
        # Where a run costs nothing only equals run together.
        ([10, 11, 10, 12, 10], 0, 0.25, [10, 10, 10]),
        # As long as nothing is known of costs the fullest batch within the bound is taken.
        ([10, 400, 9, 12, 390], math.inf, 0.25, [10, 9, 12]),
        ([10, 12, 9], math.inf, 0.0, [10]),
    ],
)
def test_what_runs_with_the_oldest(
    lengths: list[int], fixed: float, max_waste: float, wanted: list[int]
) -> None:
    assert _chosen(lengths, fixed=fixed, max_waste=max_waste) == wanted


def test_the_oldest_is_always_taken_and_bounds_hold() -> None:
    draw = random.Random(3)
    shapes = RunShapes(RULES, (_bucket(batch=(1, 8), sequence=(1, 512)),))
    for _ in range(300):
        lengths = [draw.randint(1, 500) for _ in range(draw.randint(1, 60))]
        fixed, max_waste = draw.choice([0.0, 20.0, 5_000.0, math.inf]), draw.choice([0.0, 0.1, 0.5])
        found = _chosen(lengths, fixed=fixed, max_waste=max_waste, shapes=shapes)
        assert found[0] == lengths[0]
        assert len(found) <= 8
        assert sum(found) >= (1 - max_waste) * max(found) * len(found)


def test_a_larger_bucket_of_fixed_shape_must_be_worth_it() -> None:
    buckets = (_bucket(batch=(1, 8), sequence=(1, 16)), _bucket(batch=(1, 32), sequence=(1, 16)))
    shapes = RunShapes(RULES, buckets, pads_to_largest=True)
    assert _chosen([16] * 9, fixed=10, shapes=shapes) == [16] * 8
    assert _chosen([16] * 30, fixed=10, shapes=shapes) == [16] * 30


def test_other_dimensions_have_to_be_equal() -> None:
    bare = MODEL.model_copy(update={"recipe": MODEL.recipe.model_copy(update={"inputs": {}})})
    rules = JoinRules.from_model(bare, Signature.from_model(bare))
    grouping = BatchPolicy(
        rules=rules, shapes=RunShapes(rules, LARGE), fixed_elements=math.inf, max_waste=0.9
    )
    sizes = [{"batch": 1, "sequence": length} for length in (5, 6, 5)]
    assert grouping.chosen(sizes) == [0, 2]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((1, 3), (4, 8)),
        ((4, 8), (4, 8)),
        ((5, 3), (8, 8)),
        ((1, 9), (4, 24)),
        ((9, 9), (9, 9)),  # no bucket takes it; the engine says so
    ],
)
def test_a_batch_is_raised_to_the_cheapest_static_bucket(
    found: tuple[int, int], wanted: tuple[int, int]
) -> None:
    buckets = [
        _bucket(batch=(b, b), sequence=(s, s)) for b, s in ((4, 8), (8, 8), (4, 24), (8, 24))
    ]
    shapes = RunShapes(RULES, buckets)
    raised = shapes.joined({"batch": found[0], "sequence": found[1]})
    assert (raised["batch"], raised["sequence"]) == wanted
    assert shapes.num_elements({"batch": found[0], "sequence": found[1]}) == elements_of(raised)


def test_costs_by_rows_are_those_of_each_number_of_rows() -> None:
    draw = random.Random(7)
    sizes = (1, 2, 8, 32, 128)
    for _ in range(200):
        spans = [{d: sorted(draw.choices(sizes, k=2)) for d in ("batch", "sequence")} for _ in "ab"]
        buckets = [_bucket(**{d: (a, b) for d, (a, b) in each.items()}) for each in spans]
        buckets.append(_bucket(sequence=(1, 2)))  # of any batch
        shapes = RunShapes(RULES, buckets, pads_to_largest=draw.random() < 0.5)
        length = draw.choice((1, 2, 5, 31, 128, 200))
        costs = shapes.costs_by_rows({"sequence": length})
        assert list(costs) == [0] + [
            shapes.num_elements({"batch": rows, "sequence": length})
            for rows in range(1, len(costs))
        ]


def test_what_cannot_be_padded_is_not_raised() -> None:
    bare = MODEL.model_copy(update={"recipe": MODEL.recipe.model_copy(update={"inputs": {}})})
    rules = JoinRules.from_model(bare, Signature.from_model(bare))
    shapes = RunShapes(rules, [_bucket(batch=(4, 4), sequence=(8, 8))])
    assert shapes.joined({"batch": 1, "sequence": 3}) == {"batch": 1, "sequence": 3}
    assert shapes.joined({"batch": 1, "sequence": 8}) == {"batch": 4, "sequence": 8}


@pytest.mark.parametrize("pads_to_largest", [False, True])
def test_a_bucket_that_begins_above_what_cannot_be_padded_bounds_no_rows(
    *, pads_to_largest: bool
) -> None:
    bare = MODEL.model_copy(update={"recipe": MODEL.recipe.model_copy(update={"inputs": {}})})
    rules = JoinRules.from_model(bare, Signature.from_model(bare))
    buckets = [_bucket(batch=(1, 2), sequence=(1, 8)), _bucket(batch=(1, 16), sequence=(9, 32))]
    shapes = RunShapes(rules, buckets, pads_to_largest=pads_to_largest)
    assert shapes.rows_at({"sequence": 5}) == 2
    assert shapes.rows_at({"sequence": 9}) == 16


def test_what_is_empty_hides_no_other_cost() -> None:
    shapes = RunShapes(RULES, [_bucket(batch=(1, 32), sequence=(0, 8))], pads_to_largest=True)
    assert shapes.num_elements({"batch": 2, "sequence": 0}) == 32 * 8
    assert RunShapes(RULES, LARGE).num_elements({"batch": 3, "sequence": 0}) == 3
    static = [_bucket(batch=(32, 32), sequence=(0, 8)), _bucket(batch=(4, 4), sequence=(0, 8))]
    assert RunShapes(RULES, static).joined({"batch": 1, "sequence": 0}) == {
        "batch": 4,
        "sequence": 0,
    }
    both = [_bucket(batch=(1, 4), sequence=(1, 8)), _bucket(batch=(1, 2), sequence=(0, 4))]
    assert RunShapes(RULES, both).rows_at({"sequence": 0}) == 2
    assert RunShapes(RULES, both).rows_at({"sequence": 1}) == 4


def test_the_cost_of_a_run_is_learned_and_followed() -> None:
    cost, draw = RunCost(), random.Random(5)
    for fixed_s, each_s in ((2e-3, 1e-5), (1e-4, 5e-6)):
        for _ in range(1000):
            elements = draw.randint(10, 4000)
            cost.add(elements, (fixed_s + each_s * elements) * draw.uniform(0.95, 1.05))
        assert cost.fixed_elements == pytest.approx(fixed_s / each_s, rel=0.5, abs=20)


@pytest.mark.parametrize("elements", [0, 64])
def test_runs_of_one_size_say_nothing_of_a_run_s_cost(elements: int) -> None:
    cost = RunCost()
    for _ in range(50):
        cost.add(elements, 1e-3)
    assert cost.fixed_elements == math.inf
