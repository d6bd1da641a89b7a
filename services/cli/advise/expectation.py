"""How fast an engine will be: the table of what was measured before, moved by the store's proofs.

The logarithm of the speed is a weighted mean, and the range its standard deviation: of the table's
ends, and of each engine of that kind and precision that was proven on the platform for another
model of the same class. The ends together, and such an engine, weigh one where they are of the
class, the engine's graph is of the size, its generation the same and its figure sure; less else.

Kinds are proven for different models, and some models gain by any engine: what a model's engines
gain together is taken off before they are compared (effects of model and kind that add up), and its
mean of all models put on again.

Where engines that need no build were timed here, their own seconds decide between them: their
mean stays what was expected.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, log10, sqrt
from typing import Final, NamedTuple

from compiler_worker.builders.expected_speed import EXPECTED, ExpectedSpeed, GraphClass
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision

_OTHER_CLASS = 0.1
_OTHER_GENERATION = 0.5
# A figure whose interval is so wide weighs half of a sure one.
_DOUBT = 1.5
# Runs of one code differ by so much at least, on machines that others use.
_LEAST_SPREAD = 1.15
# Precisions of one kind that are this near are one: then what is built first stands first.
_NEAR = 1.1
# How often a proof lets an engine serve, where it is not nearly always: 0 of 3 calibrated models
# of advice_zoo_cpu, 2 of 2 of precision_cpu.
_PROVEN: Final = dict.fromkeys((Precision.INT8, Precision.FP8), 0.5)
# A model with one engine does not say what is the model's: so much weight holds effects at none.
_HELD = 0.01
_ROUNDS = 20
_Engine = tuple[EngineKind, Precision]
NOT_TIMED: Final[Mapping[_Engine, float]] = {}


class Graph(NamedTuple):
    """What counts of a model and its master: the class, and FLOPs of a run at usual sizes."""

    model: str
    master: str
    graph_class: GraphClass
    flops: float


class ProvenSpeed(NamedTuple):
    """An engine of the store, how many times faster than the fallback it was, and the doubt.

    Attributes:
        doubt: the end of that figure's interval by its beginning; 1 of older records.
    """

    graph: Graph
    generation: Generation
    kind: EngineKind
    precision: Precision
    speed: float
    doubt: float = 1.0


class Expectation(NamedTuple):
    """Times faster than the fallback: a range, 0 to 0 where nothing was timed; and why."""

    kind: EngineKind
    precision: Precision
    low: float
    middle: float
    high: float
    why: str


def expectations(
    graph: Graph,
    generation: Generation,
    proven: Sequence[ProvenSpeed],
    timed: Mapping[tuple[EngineKind, Precision], float] = NOT_TIMED,
) -> list[Expectation]:
    """All that the platform has, what promises most first.

    Args:
        graph: of the model, whose own proofs are not looked at.
        generation: of the device.
        proven: engines of the store.
        timed: seconds of a run, side by side, of engines that need no build.
    """
    others = [
        (_nearness(each, graph, generation), each)
        for each in proven
        if each.graph.master != graph.master
        and each.graph.graph_class is graph.graph_class
        and each.generation.platform is generation.platform
    ]
    rows = EXPECTED[generation.platform]
    points = [_Point(s.graph.master, (s.kind, s.precision), w, log(s.speed)) for w, s in others]
    points += [point for row in rows for point in _table_points(row, graph)]
    middles = _middles(points)
    found: list[Expectation] = []
    for row in rows:
        near = [pair for pair in others if (pair[1].kind, pair[1].precision) == row[:2]]
        own = [(each.weight, each.speed) for each in points if each.engine == row[:2]]
        # What was never timed stands behind what is before it in the order of builds.
        behind = found[-1].middle if found else 1.0
        if own:
            found.append(_expectation(row, near, own, middles[row[:2]]))
        else:
            found.append(Expectation(*row[:2], 0.0, behind, 0.0, row.source))
    return list(_in_order(_as_timed(found, timed)))


def over_onnxruntime(found: Sequence[Expectation]) -> Sequence[Expectation]:
    """Times ONNX Runtime in fp32, which is the fallback where torch cannot compute the graph."""
    fallback = (EngineKind.ONNXRUNTIME, Precision.FP32)
    level = next((each.middle for each in found if each[:2] == fallback), 1.0)
    even = Expectation(*fallback, 1.0, 1.0, 1.0, "it is the fallback too")
    return [
        even
        if each[:2] == fallback
        else each._replace(low=each.low / level, middle=each.middle / level, high=each.high / level)
        for each in found
    ]


class _Point(NamedTuple):
    """Of whom, "" for the table; what; the weight; the logarithm of times the fallback."""

    master: str
    engine: _Engine
    weight: float
    speed: float


def _table_points(row: ExpectedSpeed, graph: Graph) -> list[_Point]:
    spans = {
        GraphClass.ATTENTION: row.attention,
        GraphClass.CONVOLUTIONS: row.convolutions,
        GraphClass.SMALL: row.small,
    }
    own = 1.0 if graph.graph_class in spans else _OTHER_CLASS
    span = spans.get(graph.graph_class, row.attention)
    # Half the weight at each end: without proofs the range is that of the table.
    return [_Point("", row[:2], own / 2, log(end)) for end in span if end]


def _middles(points: Sequence[_Point]) -> dict[_Engine, float]:
    """The mean of each engine for a model of usual effect; effects and means are found in turns."""
    by_engine: dict[_Engine, list[_Point]] = defaultdict(list)
    by_master: dict[str, list[_Point]] = defaultdict(list)
    for point in points:
        by_engine[point.engine].append(point)
        if point.master:
            by_master[point.master].append(point)
    if not points:
        return {}
    # The table's own is none.
    effects: dict[str, float] = defaultdict(float)
    middles: dict[_Engine, float] = {}
    for _ in range(_ROUNDS):
        for engine, own in by_engine.items():
            middles[engine] = _mean([(p.weight, p.speed - effects[p.master]) for p in own])
        for master, own in by_master.items():
            more = sum(p.weight * (p.speed - middles[p.engine]) for p in own)
            effects[master] = more / (_HELD + sum(p.weight for p in own))
    usual = _mean([(p.weight, effects[p.master]) for p in points])
    return {engine: middle + usual for engine, middle in middles.items()}


def _expectation(
    row: ExpectedSpeed,
    near: Sequence[tuple[float, ProvenSpeed]],
    own: Sequence[tuple[float, float]],
    middle: float,
) -> Expectation:
    deviation = sqrt(_mean([(weight, (x - middle) ** 2) for weight, x in own]))
    spread = max(deviation, log(_LEAST_SPREAD))
    nearest = sorted(near, key=lambda pair: -pair[0])[:2]
    words = ", ".join(f"{each.graph.model} {each.speed:.2g}x" for _, each in nearest)
    why = f"{len(near)} proven, nearest {words}" if near else row.source
    return Expectation(*row[:2], exp(middle - spread), exp(middle), exp(middle + spread), why)


def _as_timed(
    found: Sequence[Expectation], timed: Mapping[_Engine, float]
) -> Iterable[Expectation]:
    """Each as much faster than the others as it was; all together as fast as was expected."""
    known = [each for each in found if each[:2] in timed]
    level = _mean([(1.0, log(each.middle * timed[each[:2]])) for each in known]) if known else 0.0
    for each in found:
        if each not in known:
            yield each
            continue
        took_s = timed[each[:2]]
        moved = exp(level) / took_s / each.middle
        low, middle, high = (moved * end for end in each[2:5])
        why = f"timed here: {1000 * took_s:.3g} ms"
        yield Expectation(*each[:2], low, middle, high, why)


def _in_order(found: Iterable[Expectation]) -> Iterable[Expectation]:
    """What promises most first; of precisions that are near the one that is built first."""
    rest = list(found)
    while rest:
        best = max(rest, key=_promise)
        near = (each for each in rest if each.kind is best.kind)
        first = next(each for each in near if _promise(each) + log(_NEAR) >= _promise(best))
        rest.remove(first)
        is_doubtful = first.precision in _PROVEN
        yield first._replace(why=f"{first.why}; about half are proven") if is_doubtful else first


def _promise(each: Expectation) -> float:
    """The logarithm of times the fallback; an engine that its proof refuses gains nothing."""
    return _PROVEN.get(each.precision, 1.0) * log(each.middle)


def _nearness(each: ProvenSpeed, graph: Graph, generation: Generation) -> float:
    weight = 0.5 ** abs(log10((each.graph.flops + 1) / (graph.flops + 1)))
    weight /= 1 + (log(each.doubt) / log(_DOUBT)) ** 2
    return float(weight * (1.0 if each.generation == generation else _OTHER_GENERATION))


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum(weight * x for weight, x in points) / sum(weight for weight, _ in points)
