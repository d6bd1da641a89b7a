"""Of the engines that fit the fastest comes first, by latencies that can be compared."""

from collections.abc import Callable

import pytest

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import (
    Proof,
    PublishedEngine,
    Timing,
)
from services.contracts.ratio import Ratio
from services.contracts.selection.selection import mean_speedup, select

MakeEngine = Callable[..., PublishedEngine]
MakeDevice = Callable[..., DeviceFacts]
MakeProof = Callable[..., Proof]


def test_the_mean_speedup_is_geometric(make_engine: MakeEngine, make_proof: MakeProof) -> None:
    timings = (*make_proof(speedup=1.0).timings, *make_proof(speedup=4.0).timings)
    engine = make_engine(make_proof(timings=timings))
    assert mean_speedup(engine.proof.timings) == pytest.approx(2.0)
    assert mean_speedup(()) == 0.0


def timings(*pairs: tuple[int, float], eager_s: float = 1.0) -> tuple[Timing, ...]:
    """Timings of an engine: batch size and seconds per call."""
    return tuple(
        Timing(
            bucket="b",
            sizes={"batch": batch},
            p50_s=p50_s,
            p95_s=p50_s,
            throughput=1.0,
            eager_p50_s=eager_s,
        )
        for batch, p50_s in pairs
    )


def wild(timings: tuple[Timing, ...]) -> tuple[Timing, ...]:
    """The same from calls of which some took forty times as long as others."""
    ratio = Ratio(median=1.0, low=0.2, high=8.0, num_pairs=20)
    return tuple(each.model_copy(update={"ratio": ratio}) for each in timings)


# name: timings of two engines, and whether the first one serves
LATENCIES = {
    "the faster one, whatever eager did beside it": (
        timings((1, 0.1), (8, 0.4)),
        timings((1, 0.2), (8, 0.8), eager_s=44.0),
        True,
    ),
    "the mean is geometric: ten times at one shape outweighs twice at another": (
        timings((1, 0.1), (8, 0.8)),
        timings((1, 1.0), (8, 0.4)),
        True,
    ),
    "only shapes that both have count": (
        timings((1, 0.2), (32, 0.0001)),
        timings((1, 0.1), (8, 100.0)),
        False,
    ),
    "without a common shape the speed-up decides": (
        timings((1, 0.1), eager_s=0.2),
        timings((8, 0.8), eager_s=8.0),
        False,
    ),
    "of equal latencies the larger speed-up": (
        timings((1, 0.1), eager_s=2.0),
        timings((1, 0.1), eager_s=1.0),
        True,
    ),
    "wild figures come after others": (timings((1, 0.2)), wild(timings((1, 0.1))), True),
    "wild figures come before none": (wild(timings((1, 100.0))), (), True),
    "one that was never timed comes last": (timings((1, 100.0), eager_s=1.0), (), True),
}


@pytest.mark.parametrize("name", LATENCIES)
def test_engines_are_ordered_by_their_own_latency(
    make_engine: MakeEngine, make_device: MakeDevice, make_proof: MakeProof, name: str
) -> None:
    one, other, is_first = LATENCIES[name]
    # Either way round, so that no order of digests can pass for the order of latencies.
    for marks in ("ab", "ba"):
        engines = [
            make_engine(make_proof(timings=each), builder_options={"n": mark})
            for each, mark in zip((one, other), marks, strict=True)
        ]
        wanted = engines if is_first else engines[::-1]
        selection = select(engines, make_device())
        assert [selection.engine, *selection.runners_up] == wanted
