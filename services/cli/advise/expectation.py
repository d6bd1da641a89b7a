"""How fast an engine will be: the table of what was measured before, moved by the store's proofs.

The logarithm of the speed is a weighted mean, and the range its standard deviation: of the table's
ends, and of each engine of that kind and precision that was proven on the platform for another
model of the same class. The ends together, and such an engine, weigh one where they are of the
class, the engine's graph is of the size, its generation the same and its figure sure; less else.
"""

from collections.abc import Sequence
from math import exp, log, log10, sqrt
from typing import NamedTuple

from compiler_worker.builders.expected_speed import EXPECTED, ExpectedSpeed, GraphClass
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision

_OTHER_CLASS = 0.1
_OTHER_GENERATION = 0.5
# A figure whose interval is so wide weighs half of a sure one.
_DOUBT = 1.5
# Runs of one code differ by so much at least, on machines that others use.
_LEAST_SPREAD = 1.15


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
    graph: Graph, generation: Generation, proven: Sequence[ProvenSpeed]
) -> list[Expectation]:
    """All that the platform has, what promises most first.

    Args:
        graph: of the model, whose own proofs are not looked at.
        generation: of the device.
        proven: engines of the store.
    """
    others = [
        (_nearness(each, graph, generation), each)
        for each in proven
        if each.graph.master != graph.master
        and each.graph.graph_class is graph.graph_class
        and each.generation.platform is generation.platform
    ]
    found: list[Expectation] = []
    for row in EXPECTED[generation.platform]:
        near = [pair for pair in others if (pair[1].kind, pair[1].precision) == row[:2]]
        # What was never timed stands behind what is before it in the order of builds.
        found.append(_expectation(row, graph, near, found[-1].middle if found else 1.0))
    return sorted(found, key=lambda each: -each.middle)


def _expectation(
    row: ExpectedSpeed, graph: Graph, near: Sequence[tuple[float, ProvenSpeed]], behind: float
) -> Expectation:
    spans = {GraphClass.ATTENTION: row.attention, GraphClass.CONVOLUTIONS: row.convolutions}
    own = 1.0 if graph.graph_class in spans else _OTHER_CLASS
    span = spans.get(graph.graph_class, row.attention)
    points = [(weight, log(each.speed)) for weight, each in near]
    # Half the weight at each end: without proofs the range is that of the table.
    points += [(own / 2, log(end)) for end in span if end]
    if not points:
        return Expectation(*row[:2], 0.0, behind, 0.0, row.source)
    middle = _mean(points)
    deviation = sqrt(_mean([(weight, (x - middle) ** 2) for weight, x in points]))
    spread = max(deviation, log(_LEAST_SPREAD))
    nearest = sorted(near, key=lambda pair: -pair[0])[:2]
    words = ", ".join(f"{each.graph.model} {each.speed:.2g}x" for _, each in nearest)
    why = f"{len(near)} proven, nearest {words}" if near else row.source
    return Expectation(*row[:2], exp(middle - spread), exp(middle), exp(middle + spread), why)


def _nearness(each: ProvenSpeed, graph: Graph, generation: Generation) -> float:
    weight = 0.5 ** abs(log10((each.graph.flops + 1) / (graph.flops + 1)))
    weight /= 1 + (log(each.doubt) / log(_DOUBT)) ** 2
    return float(weight * (1.0 if each.generation == generation else _OTHER_GENERATION))


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum(weight * x for weight, x in points) / sum(weight for weight, _ in points)
