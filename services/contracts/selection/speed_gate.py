"""The benchmark's gate: an engine that is slower than the fallback does not serve.

Both are timed in one run, call by call: of the proof, and of later ones where that leaves doubt. An
engine is faster or slower only where the interval of that ratio, and what the fallback seems to
gain on itself, leave no doubt. Otherwise what served before goes on serving, and both are timed
again later. The engine stays published, with its figures, so that everybody can see why the
fallback is the better choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import geometric_mean

from services.contracts.model.manifest import Timing
from services.contracts.model.recipe import Recipe
from services.contracts.text.words import readable_ratio

# Two runs of one and the same code differ by so much. Of equals the engine is the better one:
# a replica loads it in moments, and compiles the fallback for seconds.
NOISE = 0.05
# An interval whose ends are further apart ranks no engine. Beside the fallback it decides all the
# same, for an engine that is so much faster at the interval's worst end.
_WILD = 4.0
_CLEAR = 1.25
# An order of magnitude: no digit of such an interval says anything, so it is not printed at all.
_UNSAID = 10.0
BUSY = (
    "not measurable while this machine is busy: calls differed too much to say whether it or the "
    "fallback is faster"
)
# Follows the figures of an engine that could not be measured.
TIMED_LATER = "; what serves now stays, and the fleet times them again later"


class SpeedVerdict(StrEnum):
    """The result of a run for an engine beside the fallback."""

    KEEPS_UP = "keeps_up"
    SLOWER = "slower"
    NOT_MEASURABLE = "not_measurable"


@dataclass(frozen=True, kw_only=True)
class SpeedBounds:
    """How many times faster than the baseline, at least and at most, the mean of all shapes."""

    low: float
    high: float

    @property
    def is_wild(self) -> bool:
        """Whether calls differed too much to rank it among engines."""
        return self.high >= _WILD * self.low

    @property
    def words(self) -> str:
        """`0.80 to 1.31`; "" of one whose ends are so far apart that it measures nothing."""
        if self.high >= _UNSAID * self.low:
            return ""
        return f"{readable_ratio(self.low)} to {readable_ratio(self.high)}"

    def words_of(self, speed: float, baseline: str) -> str:
        """`1.25 x the fallback (1.20 to 1.30)`; of a wild one the end that is sure, or ""."""
        if not self.is_wild:
            return f"{readable_ratio(speed)} x {baseline} ({self.words})"
        if self.low > 1:
            return f"at least {readable_ratio(self.low)} x {baseline}"
        return f"at most {readable_ratio(self.high)} x {baseline}" if self.high < 1 else ""


def beside_words(speed: float | None, bounds: SpeedBounds | None, baseline: str) -> str:
    """How fast an engine is beside a baseline; "" untimed, and where calls differed too much.

    Args:
        speed: the median; None untimed.
        bounds: None in older records.
        baseline: `the fallback`.
    """
    if speed is None:
        return ""
    return bounds.words_of(speed, baseline) if bounds else f"{readable_ratio(speed)} x {baseline}"


def speed_over_fallback(timings: Sequence[Timing]) -> float | None:
    """How many times faster than the fallback, the geometric mean of all shapes; None untimed."""
    timed = [(t.fallback.p50_s / t.p50_s, t.ratio) for t in timings if t.fallback]
    ratios = [paired.median if paired else of_medians for of_medians, paired in timed]
    return geometric_mean(ratios) if ratios else None


def speed_bounds(timings: Sequence[Timing]) -> SpeedBounds | None:
    """The interval of that, or over eager without a fallback; None in older records."""
    timed = [t for t in timings if t.fallback] or timings
    known = [(t.ratio, _noise(t)) for t in timed if t.ratio]
    if not known or len(known) < len(timed):
        return None
    # Bounds of a mean of shapes lie closer together than this mean of their bounds.
    return SpeedBounds(
        low=geometric_mean(ratio.low / noise for ratio, noise in known),
        high=geometric_mean(ratio.high * noise for ratio, noise in known),
    )


def is_wild(timings: Sequence[Timing]) -> bool:
    """Whether one run ranks an engine nowhere; older records have no doubts."""
    bounds = speed_bounds(timings)
    return bounds is not None and bounds.is_wild


def _noise(timing: Timing) -> float:
    """By how much the baseline seems faster or slower than itself; 1 is not at all.

    Its calls lie a round apart, those of a pair side by side: what a load does to more than runs
    of one code differ by is in the interval of the pairs, and would be counted twice.
    """
    baseline = timing.fallback or timing.eager
    itself = baseline.ratio if baseline else None
    return min(max(itself.high, 1 / itself.low), 1 + NOISE) if itself else 1.0


def verdict(timings: Sequence[Timing]) -> SpeedVerdict | None:
    """The result of one run; None if the fallback was not timed. Older records have no doubts."""
    speed = speed_over_fallback(timings)
    if speed is None:
        return None
    bounds = speed_bounds(timings) or SpeedBounds(low=speed, high=speed)
    if bounds.high < 1 - NOISE:
        return SpeedVerdict.SLOWER
    if bounds.low >= (_CLEAR if bounds.is_wild else 1 - NOISE):
        return SpeedVerdict.KEEPS_UP
    return SpeedVerdict.NOT_MEASURABLE


def deciding(history: Sequence[Sequence[Timing]]) -> Sequence[Timing]:
    """The run that counts: the newest that leaves no doubt, else the newest with the fallback.

    Args:
        history: an engine's timings of its proof and of its joint runs, oldest first.
    """
    if len(history) == 1:
        return history[0]
    known = [timings for timings in history if verdict(timings)]
    clear = [timings for timings in known if verdict(timings) is not SpeedVerdict.NOT_MEASURABLE]
    return (clear or known or history or [()])[-1]


def is_settled(history: Sequence[Sequence[Timing]]) -> bool:
    """Whether an engine and the fallback need not be timed again: measured, and without doubt."""
    known = [timings for timings in history if verdict(timings)]
    return not known or any(
        speed_bounds(timings)
        and verdict(timings) is not SpeedVerdict.NOT_MEASURABLE
        and not is_wild(timings)
        for timings in known
    )


def rejection_reason(
    timings: Sequence[Timing], recipe: Recipe | None = None, model: str = "MODEL"
) -> str:
    """Why an engine is not served with; "" when it is, or the recipe does not ask.

    Args:
        timings: of the run that counts.
        recipe: None asks.
        model: its name, for the command in the words.
    """
    found = verdict(timings)
    speed = speed_over_fallback(timings)
    if (
        speed is None
        or found is SpeedVerdict.KEEPS_UP
        or (recipe and not recipe.must_beat_fallback)
    ):
        return ""
    bounds = speed_bounds(timings)
    if found is SpeedVerdict.SLOWER:
        return (
            f"slower than the fallback: {beside_words(speed, bounds, 'its speed')}, so it is "
            "not selected; to serve with it all the same, the recipe says "
            "must_beat_fallback: false"
        )
    if is_wild(timings):
        rough = f" ({bounds.words} times its speed)" if bounds and bounds.words else ""
        return f"{BUSY}{rough}{TIMED_LATER}; at once, when less runs here: smelt build {model}"
    return (
        f"not measurable here now: {bounds.words if bounds else ''} x the fallback's speed, "
        f"too close to tell{TIMED_LATER}; at once: smelt build {model}"
    )
