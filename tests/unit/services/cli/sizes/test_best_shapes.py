"""Shapes for traffic: against every other choice, and the cases that people meet."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, groupby, pairwise, product
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.planning.curves import Curve
from services.cli.sizes.best_shapes import Shape, ShapeSearch, best_cuts, cheapest
from services.cli.sizes.measured_cost import BY_ELEMENTS, MeasuredCost
from services.contracts.errors import InvalidRequestError

# The longest of both takes 4 rows, and no run has more than 64 elements.
PRESENT = ([Shape(16, 4)], [Shape(5, 12), Shape(16, 4)])
USUAL, MOST = 4, 64
counts = st.integers(0, 9).map(float)


def _cost(*points: tuple[int, float], pads: bool = True) -> MeasuredCost:
    curve = Curve.through("engine", points, pads_to_largest=pads)
    assert curve
    return MeasuredCost(curve=curve, name="engine")


def _ends(num_items: int) -> Iterator[list[tuple[int, int]]]:
    """Every way to cut so many items into stretches, as first and last items."""
    for num in range(num_items):
        for cuts in combinations(range(1, num_items), num):
            borders = [0, *cuts, num_items]
            yield [(a, b - 1) for a, b in pairwise(borders)]


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_no_other_cut_costs_less(data: st.DataObject, size: int, most: int, num: int) -> None:
    cells = st.lists(st.integers(0, 50), min_size=size * size * most, max_size=size * size * most)
    costs = np.array(data.draw(cells), np.float64).reshape(most, size, size)
    others = [np.inf]
    for stretches in _ends(size):
        totals = {0: 0.0}
        for first, last in stretches:
            options = [(n + 1, costs[n, first, last]) for n in range(most)]
            new: dict[int, float] = {}
            for used, total in totals.items():
                for own, price in options:
                    known = new.get(used + own, np.inf)
                    new[used + own] = min(known, total + price)
            totals = new
        others += [total for used, total in totals.items() if used <= num]
    cut = cheapest(best_cuts(costs, num))
    assert cut is not None
    assert cut.cost == min(others)
    assert sum(each.num for each in cut.stretches) <= num
    assert sum(costs[e.num - 1, e.first, e.last] for e in cut.stretches) == cut.cost


def _seconds(
    shapes: Sequence[Shape],
    sizes: Mapping[int, float],
    batches: Mapping[int, float],
    cost: MeasuredCost,
    full: int,
    *,
    is_exact: bool,
) -> float:
    """What all runs take at the shapes of their own stretch, with what a long batch delays."""
    rungs = {
        size: [shape.rows for shape in same]
        for size, same in groupby(sorted(shapes), attrgetter("size"))
    }
    total = 0.0
    for size, count in sizes.items():
        edge = min(each for each in rungs if each >= size)
        most = rungs[edge][-1]
        ran = size if is_exact else edge
        for rows, runs in batches.items():
            if rows <= most and rows < full:
                held = min(each for each in rungs[edge] if each >= rows)
                pads = cost.curve.pads_to_largest
                total += count * runs * cost.run_s(ran, held if pads else rows)
            else:
                delay = 1.25 ** np.log2(most / USUAL)
                total += count * runs * rows / most * delay * cost.run_s(ran, most)
    return total


def _proposals(
    present: Sequence[Shape], bounds: Sequence[int], rungs: Sequence[int], num: int
) -> Iterator[list[Shape]]:
    """Every set of shapes that takes what the present ones take, within their memory."""
    rows = sorted({*rungs, 4, 8, 12, 16, 24, 32})
    every = [Shape(*each) for each in product(bounds, rows) if each[0] * each[1] <= MOST]
    for chosen in range(1, num + 1):
        for shapes in combinations(every, chosen):
            limits = {shape.size: shape.rows for shape in sorted(shapes)}
            least = [
                max(shape.rows for shape in present if shape.size > below)
                for below in (0, *list(limits)[:-1])
            ]
            if bounds[-1] in limits and all(
                most in (rows, 2 * rows, 4 * rows, 8 * rows)
                for most, rows in zip(limits.values(), least, strict=True)
            ):
                yield list(shapes)


@given(
    st.sampled_from(PRESENT),
    st.fixed_dictionaries({2: counts, 5: counts, 16: counts.map(lambda count: count + 1)}),
    st.dictionaries(st.sampled_from([1, 2, 4, 12]), st.integers(1, 9).map(float), min_size=1),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.integers(2, 4),
    st.sampled_from([(True, False), (False, False), (False, True)]),
)
def test_no_other_shapes_take_less_time(
    present: list[Shape],
    sizes: dict[int, float],
    batches: dict[int, float],
    times: list[int],
    num: int,
    runs_at: tuple[bool, bool],
) -> None:
    points = zip((1, 8, 20, MOST), np.cumsum(times).tolist(), strict=True)
    pads, is_exact = runs_at
    cost = _cost(*((size, float(took)) for size, took in points), pads=pads)
    search = ShapeSearch(present, sizes, batches, cost, is_exact=is_exact)
    best = search.best(num)
    assert best[-1] == Shape(16, 4)
    assert len(best) <= num
    # More may have waited than filled a batch.
    full = max(shape.rows for shape in present)
    seen = {rows: runs for rows, runs in batches.items() if rows < full}
    seen[full] = sum(runs for rows, runs in batches.items() if rows >= full)
    bounds = sorted({16, *(s.size for s in present), *(s for s, count in sizes.items() if count)})
    proposals = _proposals(present, bounds, list(seen), num)
    seconds = partial(_seconds, sizes=sizes, batches=seen, cost=cost, full=full, is_exact=is_exact)
    least = min(map(seconds, proposals))
    assert seconds(best) == pytest.approx(least)
    # Replicas have more shapes to choose from than those of a stretch.
    rows = sum(n * runs for n, runs in seen.items()) * sum(sizes.values())
    assert search.mean_s(best) * rows <= least * (1 + 1e-9)


def test_no_shape_is_proposed_that_gains_nothing() -> None:
    sizes = {8: 50.0, 64: 50.0, 512: 1.0}
    present = [Shape(512, 1)]
    # All up to 64 take the same.
    flat = _cost((8, 1.0), (64, 1.0), (512, 8.0))
    search = ShapeSearch(present, sizes, {}, flat, may_grow=False)
    assert search.best(3) == [Shape(64, 1), Shape(512, 1)]
    assert search.mean_s(present) == 8.0
    assert search.mean_s(search.best(2)) == pytest.approx(108 / 101)
    by_elements = ShapeSearch(present, sizes, {}, BY_ELEMENTS)
    assert [shape.size for shape in by_elements.best(3)] == [8, 64, 512]
    many = ShapeSearch([Shape(8192, 1)], dict.fromkeys(range(1, 8193), 1.0), {}, BY_ELEMENTS)
    assert [shape.size for shape in many.best(2)] == [4096, 8192]


def test_what_the_largest_bucket_refuses_is_no_reason_for_another() -> None:
    search = ShapeSearch([Shape(128, 1)], {8: 5.0, 512: 5.0}, {}, BY_ELEMENTS)
    assert [shape.size for shape in search.best(3)] == [8, 128]


def test_batches_of_short_requests_are_as_large_as_that_pays() -> None:
    # From 256 to 2,048 elements a run takes the same, beyond that in proportion.
    cost = _cost((256, 0.001), (2048, 0.001), (16384, 0.008))
    sizes = {16: 9.0, 64: 9.0, 512: 1.0}
    search = ShapeSearch([Shape(512, 32)], sizes, {}, cost)
    assert search.best(3) == [Shape(16, 128), Shape(64, 32), Shape(512, 32)]
    # Batches that are never full need no more rows, and run at a shape of their own.
    few = ShapeSearch([Shape(512, 32)], {512: 1.0}, {2: 9.0, 32: 1.0}, cost)
    assert few.best(2) == [Shape(512, 2), Shape(512, 32)]
    assert few.mean_s(few.best(2)) < few.mean_s([Shape(512, 32)]) / 3
    # An engine that runs any number of rows needs no shape for them.
    exact = _cost((256, 0.001), (2048, 0.001), (16384, 0.008), pads=False)
    assert ShapeSearch([Shape(512, 32)], {512: 1.0}, {2: 9.0, 32: 1.0}, exact).best(2) == [
        Shape(512, 32)
    ]


def test_what_clients_may_send_today_they_may_send_tomorrow() -> None:
    present = [Shape(16, 128), Shape(512, 32)]
    search = ShapeSearch(present, {10: 1.0, 40: 9.0, 500: 1.0}, {}, BY_ELEMENTS)
    for num in (2, 3, 4):
        best = search.best(num)
        for size, rows in present:
            short = min(shape.size for shape in best)
            assert max(s.rows for s in best if s.size >= min(short, size)) >= rows
        assert max(shape.size * shape.rows for shape in best) == 32 * 512
    with pytest.raises(InvalidRequestError, match="1 buckets are too few.*--num"):
        search.best(1)


def test_runs_smaller_than_those_that_were_timed_take_what_the_line_through_these_says() -> None:
    line = _cost((100, 3.0), (200, 5.0), (400, 5.0))
    assert [line.run_s(size, 1) for size in (25, 50, 100, 150)] == [1.5, 2.0, 3.0, 4.0]
    # Ten times the elements never take more than ten times as long.
    assert _cost((100, 3.0), (200, 9.0)).run_s(10, 1) == pytest.approx(0.3)
    assert _cost((100, 3.0), (200, 3.0)).run_s(10, 1) == 3.0
    alone = _cost((512, 8.0))
    assert alone.run_s(8, 4) == 0.5
    # So a recipe of a single size has shorter ones to gain from.
    best = ShapeSearch([Shape(512, 1)], {8: 9.0, 500: 1.0}, {}, alone).best(2)
    assert best == [Shape(8, 1), Shape(512, 1)]
