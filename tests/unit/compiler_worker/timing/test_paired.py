"""Ratios of paired calls, on series of which the truth is known."""

from random import Random

import pytest

from compiler_worker.timing.paired import FEWEST_PAIRS, TimedCall, is_decided, ratio_of
from services.contracts.ratio import Ratio


def series(random: Random, load: list[float], took_s: float, spread: float) -> list[TimedCall]:
    """Calls on a machine whose load meets all sides."""
    return calls(*(took_s * each * random.lognormvariate(0.0, spread) for each in load))


def calls(*seconds: float, waited: float = 0.0) -> list[TimedCall]:
    """Calls whose threads waited for that share of them."""
    return [TimedCall(seconds=each, waited_share=waited) for each in seconds]


def found(faster: float, *, spread: float = 0.03, num_calls: int = 200, seed: int = 1) -> Ratio:
    """What is found of a side that is so many times faster, on a machine with bursts of load."""
    random = Random(seed)
    load = [random.choice((1.0, 1.0, 1.0, 20.0)) for _ in range(num_calls)]
    baseline = series(random, load, 1e-3, spread)
    return ratio_of(baseline, series(random, load, 1e-3 / faster, spread))


@pytest.mark.parametrize("faster", [0.5, 1.0, 1.02, 2.0, 40.0])
def test_bursts_of_load_do_not_hide_a_ratio(faster: float) -> None:
    ratio = found(faster)
    assert ratio.low < faster < ratio.high
    assert ratio.high / ratio.low < 1.03
    assert ratio.median == pytest.approx(faster, rel=0.01)
    assert ratio.num_pairs == 200


def test_two_hundredths_are_found_with_calls_enough() -> None:
    assert found(1.02, num_calls=500).low > 1
    assert found(1.02, num_calls=20).low < 1 < found(1.02, num_calls=20).high


def test_wild_figures_tell_nothing() -> None:
    ratio = found(1.5, spread=1.5, num_calls=20)
    assert ratio.low < 1 < ratio.high
    assert ratio.high > 2 * ratio.low


def test_equal_sides_are_hardly_ever_told_apart() -> None:
    """The interval of 99 % misses twice as often at most, on 1,000 series."""
    ratios = [found(1.0, spread=0.3, num_calls=30, seed=seed) for seed in range(1000)]
    assert sum(not ratio.low <= 1 <= ratio.high for ratio in ratios) <= 20


def test_the_fewest_pairs_have_all_their_ratios_for_an_interval() -> None:
    sides = calls(*(1.0 + n for n in range(FEWEST_PAIRS)))
    ratio = ratio_of(calls(1.0) * FEWEST_PAIRS, sides)
    assert (ratio.low, ratio.high) == (1 / FEWEST_PAIRS, 1.0)
    with pytest.raises(ValueError, match="7 pairs tell no interval, 8 do"):
        ratio_of(sides[1:], sides[1:])


def test_pairs_without_waits_are_counted_alone() -> None:
    """Beside load the side takes twice as long for every time that the baseline does once."""
    baseline = calls(4.0) * FEWEST_PAIRS + calls(8.0, waited=0.5) * 30
    side = calls(1.0) * FEWEST_PAIRS + calls(4.0, waited=0.75) * 30
    ratio = ratio_of(baseline, side)
    assert (ratio.median, ratio.low, ratio.high) == (4.0, 4.0, 4.0)
    assert ratio.num_pairs == FEWEST_PAIRS


def test_where_threads_waited_all_along_the_interval_holds_what_the_truth_may_be() -> None:
    """The side alone takes 1 s and the baseline 4 s: the load hides half of that ratio."""
    ratio = ratio_of(calls(8.0, waited=0.5) * 40, calls(4.0, waited=0.75) * 40)
    assert (ratio.low, ratio.high) == (1.0, 8.0)
    assert ratio.median == pytest.approx(8.0**0.5), "the middle of it"
    assert ratio.num_pairs == 40


def delayed(random: Random, took_s: float, delay: float) -> TimedCall:
    """A call whose threads waited for a while, which delayed it by a share of that."""
    waited_s = took_s * random.uniform(0.1, 0.5)
    seconds = took_s * random.lognormvariate(0.0, 0.05) + delay * waited_s
    return TimedCall(seconds=seconds, waited_share=waited_s / seconds)


def ratio_beside_load(num_calls: int, seed: int) -> Ratio:
    """Of a side that takes 1 s, and 4 s the baseline, whose waits delay it half as much."""
    random = Random(seed)
    pairs = [(delayed(random, 4.0, 0.5), delayed(random, 1.0, 1.0)) for _ in range(num_calls)]
    return ratio_of([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def test_what_waits_add_to_a_call_is_found_by_calls_that_waited_longer_than_others() -> None:
    ratio = ratio_beside_load(80, seed=1)
    assert ratio.low < 4.0 < ratio.high < 1.3 * ratio.low
    assert ratio.num_pairs == 80
    # Of few calls it is not, and the interval is that of any delay.
    few = ratio_beside_load(9, seed=1)
    assert few.high > 1.5 * few.low


def test_waits_hardly_ever_hide_the_ratio() -> None:
    ratios = [ratio_beside_load(30, seed) for seed in range(300)]
    assert sum(not ratio.low <= 4.0 <= ratio.high for ratio in ratios) <= 6


def test_waits_of_many_threads_add_up_to_more_than_a_call() -> None:
    ratio = ratio_of(calls(1.0, waited=7.5) * 8, calls(1.0) * 8)
    assert (ratio.low, ratio.high) == (0.01, 1.0)


def test_short_waits_are_none() -> None:
    ratio = ratio_of(calls(2.0, waited=0.05) * 8, calls(1.0, waited=0.05) * 8)
    assert (ratio.low, ratio.high) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("intervals", "is_clear"),
    [
        ([(2.9, 3.2), (1.1, 1.3)], True),
        ([(0.5, 0.6), (0.7, 0.8)], True),
        ([(1.2, 1.3)], True),
        # Which is fastest; which beats the baseline; how much faster it is.
        ([(1.2, 1.4), (1.3, 1.5)], False),
        ([(2.9, 3.2), (0.9, 1.1)], False),
        ([(0.6, 0.95)], False),
        ([(2.0, 6.0)], False),
    ],
)
def test_intervals_decide_where_they_leave_nothing_open(
    intervals: list[tuple[float, float]], is_clear: bool
) -> None:
    ratios = [Ratio(median=(a + b) / 2, low=a, high=b, num_pairs=40) for a, b in intervals]
    assert is_decided(ratios) is is_clear
