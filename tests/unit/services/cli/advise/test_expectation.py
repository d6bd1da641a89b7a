"""Expectations: the table alone, and what proofs of other models change."""

from itertools import pairwise

import pytest

from compiler_worker.builders.expected_speed import EXPECTED, GraphClass
from compiler_worker.builders.select import build_place
from services.cli.advise.expectation import Expectation, Graph, ProvenSpeed, expectations
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from tests.unit.services.controller import build_world as world

CPU = Generation.parse("cpu-x86_64-avx512_vnni")
GPU = Generation.parse("cuda-sm90")
EIGHT_BITS = (Precision.INT8, Precision.FP8)
MINE = Graph("mine", "its digest", GraphClass.ATTENTION, 1e9)


def proven(
    model: str, speed: float, graph_class: GraphClass = GraphClass.ATTENTION, flops: float = 1e9
) -> ProvenSpeed:
    graph = Graph(model, f"that of {model}", graph_class, flops)
    return ProvenSpeed(graph, CPU, EngineKind.ONNXRUNTIME, Precision.FP32, speed)


def of_runtime(found: list[Expectation]) -> Expectation:
    what = (EngineKind.ONNXRUNTIME, Precision.FP32)
    return next(each for each in found if each[:2] == what)


def test_without_proofs_the_table_is_what_is_expected() -> None:
    found = expectations(MINE, CPU, ())
    (row,) = (r for r in EXPECTED[Platform.CPU] if r[:2] == found[0][:2])
    assert (found[0].low, found[0].high) == pytest.approx(row.attention)
    assert found[0].why == row.source
    sure = [each for each in found if each.precision not in EIGHT_BITS]
    assert all(1.1 * one.middle >= other.middle for one, other in pairwise(sure))
    conv = expectations(MINE._replace(graph_class=GraphClass.CONVOLUTIONS), CPU, ())
    assert (conv[0].low, conv[0].high) == pytest.approx(row.convolutions)


def test_builds_go_in_the_order_of_the_table() -> None:
    keys = [
        world.key(row.kind, precision=row.precision, generation=str(generation))
        for generation in (CPU, GPU)
        for row in EXPECTED[generation.platform]
    ]
    nums = [len(EXPECTED[each]) for each in (Platform.CPU, Platform.CUDA)]
    version = world.version()
    found = [build_place(key, version)[1] for key in keys]
    assert found == [*range(nums[0]), *range(nums[1])]
    unknown = world.key(EngineKind.XLA, precision=Precision.BF16, generation=str(CPU))
    assert build_place(unknown, version) == (False, nums[0])


def test_what_was_never_timed_stands_behind_what_is_built_before_it() -> None:
    found = [each for each in expectations(MINE, GPU, ()) if each.precision not in EIGHT_BITS]
    rows = [row for row in EXPECTED[Platform.CUDA] if row.precision not in EIGHT_BITS]
    assert [each[:2] for each in found] == [row[:2] for row in rows]
    assert [each.high for each in found] == pytest.approx([row.attention[1] for row in rows])


def test_eight_bits_stand_first_where_they_promise_the_square_as_proofs_refuse_half() -> None:
    int8, bf16 = (
        next(row for row in EXPECTED[Platform.CPU] if row[:2] == (EngineKind.OPENVINO, precision))
        for precision in (Precision.INT8, Precision.BF16)
    )
    assert int8.attention[0] > bf16.attention[0]
    first = expectations(MINE, CPU, ())[0]
    assert first[:2] == bf16[:2]
    assert "are proven" not in first.why
    graphs = [Graph(name, name, GraphClass.ATTENTION, 1e9) for name in "abcdefgh"]
    much = [
        ProvenSpeed(graph, CPU, *row[:2], speed)
        for graph in graphs
        for row, speed in ((int8, 20.0), (bf16, 2.0))
    ]
    first = expectations(MINE, CPU, much)[0]
    assert first[:2] == int8[:2]
    assert first.why.endswith("; about half are proven")


def test_proofs_of_its_class_move_it_and_its_own_do_not() -> None:
    before = of_runtime(expectations(MINE, CPU, ()))
    twin = proven("twin", 9.0)
    twin = twin._replace(graph=twin.graph._replace(master=MINE.master))
    own = of_runtime(expectations(MINE, CPU, [twin, proven("a", 9.0, GraphClass.DENSE)]))
    moved = of_runtime(expectations(MINE, CPU, [proven("other", 9.0)]))
    assert own == before
    assert before.middle < moved.middle < 9.0
    assert moved.why == "1 proven, nearest other 9x"


@pytest.mark.parametrize(
    "farther",
    [
        proven("far", 9.0, flops=1e5),
        proven("far", 9.0)._replace(generation=Generation.parse("cpu-x86_64-v3")),
        proven("far", 9.0)._replace(doubt=4.0),
    ],
    ids=["size", "generation", "doubt"],
)
def test_the_nearer_a_graph_the_more_its_proof_counts(farther: ProvenSpeed) -> None:
    near = of_runtime(expectations(MINE, CPU, [proven("near", 9.0)])).middle
    far = of_runtime(expectations(MINE, CPU, [farther])).middle
    assert of_runtime(expectations(MINE, CPU, ())).middle < far < near


def test_a_range_is_wider_where_proofs_differ() -> None:
    alike, unlike, none = (
        of_runtime(expectations(MINE, CPU, [proven(str(s), s) for s in speeds]))
        for speeds in ((1.5, 1.7), (0.3, 9.0), ())
    )
    assert unlike.high / unlike.low > none.high / none.low > alike.high / alike.low
    sure = of_runtime(expectations(MINE, CPU, [proven(str(n), 1.6) for n in range(999)]))
    assert sure.high / sure.low == pytest.approx(1.15**2)


def test_a_kind_is_not_better_for_the_models_that_it_was_proven_for() -> None:
    """The table has fp16 at twice the fallback; there all engines of one model are thrice it."""
    graph = Graph("convnext", "another digest", GraphClass.CONVOLUTIONS, 1e9)
    speeds = ((Precision.FP16, 3.26), (Precision.BF16, 3.2), (Precision.FP32, 3.22))
    found = [ProvenSpeed(graph, GPU, EngineKind.INDUCTOR, *pair) for pair in speeds]
    mine = MINE._replace(graph_class=GraphClass.CONVOLUTIONS)
    kind, precision, *_ = expectations(mine, GPU, found)[0]
    assert (kind, precision) == (EngineKind.INDUCTOR, Precision.FP16)


def test_of_two_that_are_near_the_one_that_is_built_first_stands_first() -> None:
    graph = Graph("other", "another digest", GraphClass.DENSE, 1e9)
    mine = MINE._replace(graph_class=GraphClass.DENSE)

    def first(bf16: float) -> Precision:
        speeds = ((Precision.FP16, 2.0), (Precision.BF16, bf16))
        found = [ProvenSpeed(graph, GPU, EngineKind.INDUCTOR, *pair) for pair in speeds]
        return expectations(mine, GPU, found)[0].precision

    assert [first(2.1), first(3.0)] == [Precision.FP16, Precision.BF16]


def test_what_was_timed_here_decides_between_those_that_were() -> None:
    runtimes = [(kind, Precision.FP32) for kind in (EngineKind.ONNXRUNTIME, EngineKind.OPENVINO)]
    before = {each[:2]: each for each in expectations(MINE, CPU, ())}
    for seconds in ((0.01, 0.02), (0.02, 0.01)):
        timed = dict(zip(runtimes, seconds, strict=True))
        order = expectations(MINE, CPU, (), timed)
        found = {each[:2]: each for each in order}
        quick, slow = sorted(runtimes, key=timed.__getitem__)
        assert found[quick].middle == pytest.approx(2 * found[slow].middle)
        assert [each[:2] for each in order if each[:2] in timed] == [quick, slow]
        for bound in ("low", "middle", "high"):
            product = getattr(found[quick], bound) * getattr(found[slow], bound)
            assert product == pytest.approx(
                getattr(before[quick], bound) * getattr(before[slow], bound)
            )
        assert found[quick].why == "timed here: 10 ms"
        others = found.keys() - timed.keys()
        assert all(found[each] == before[each] for each in others)
