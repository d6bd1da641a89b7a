"""The benchmark's gate: an engine that is slower than the fallback serves nobody.

Both are timed in one run: of the proof, and then of all candidates together. The engine stays
published, with its figures, so that everybody can see why the fallback is the better choice.
"""

from collections.abc import Sequence
from statistics import geometric_mean

from services.contracts.manifest import Timing
from services.contracts.recipe import Recipe
from services.contracts.words import readable_ratio

# Two runs of one and the same code differ by so much. Of equals the engine is the better one:
# a replica loads it in moments, and compiles the fallback for seconds.
NOISE = 0.05


def speed_over_fallback(timings: Sequence[Timing]) -> float | None:
    """How many times faster than the fallback, the geometric mean of all shapes; None untimed."""
    ratios = [t.fallback.p50_s / t.p50_s for t in timings if t.fallback]
    return geometric_mean(ratios) if ratios else None


def gate_fault(timings: Sequence[Timing], recipe: Recipe | None = None) -> str:
    """Why an engine is not worth serving with; "" when it is, or the recipe does not ask.

    Args:
        timings: of a joint run where there is one, else of its proof.
        recipe: None asks.
    """
    speed = speed_over_fallback(timings)
    if speed is None or speed >= 1 - NOISE or (recipe and not recipe.must_beat_fallback):
        return ""
    return (
        f"slower than the fallback: {readable_ratio(speed)} x its speed, so it is not selected; "
        "to serve with it all the same, the recipe says must_beat_fallback: false"
    )
