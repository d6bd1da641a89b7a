"""What graphs say of the integers that they take: rows of tables, and what moves ids there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_worker.master.stored import store_onnx
from services.contracts.model.input_values import InputValues, IntegerSpan
from tests.unit.compiler_worker.master.conftest import MakeModel, tensor_info

ROWS = 60
Known = Callable[..., InputValues]
node = helper.make_node


def ints(*shape: int | str, name: str = "ids", dtype: int = TensorProto.INT64) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def table(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)


@pytest.fixture
def known(make_model: MakeModel, save: Callable[..., Path], tmp_path: Path) -> Known:
    """What is known of `ids`, [N, T] unless an input is given, in a graph that ends in `y`."""

    def infer(
        nodes: Sequence[onnx.NodeProto], *, ids: Any = None, rank: int = 3, **weights: Any
    ) -> InputValues:
        model = make_model(
            list(nodes),
            inputs=[ids or ints("N", "T"), tensor_info("x")],
            outputs=[tensor_info("y", [None] * rank)],
            weights={
                "table": table(),
                **{name: np.asarray(each) for name, each in weights.items()},
            },
        )
        stored = store_onnx(save(model), tmp_path / "stored")
        return stored.input_values.get("ids", InputValues())

    return infer


def span(low: int | None, high: int | None) -> tuple[IntegerSpan, ...]:
    return (IntegerSpan(min=low, max=high),)


def lookup(indices: str = "ids", of: str = "table", to: str = "y") -> onnx.NodeProto:
    return node("Gather", [of, indices], [to])


def test_ids_are_rows_of_the_table_that_they_look_up(known: Known) -> None:
    assert known([lookup()]) == InputValues(
        drawn=span(0, 59), allowed=span(0, 59), tables=("table",)
    )


def test_of_two_tables_the_smaller_one_counts_and_both_are_named(known: Known) -> None:
    nodes = [lookup(to="a"), lookup(of="small", to="b"), node("Add", ["a", "b"], ["y"])]
    found = known(nodes, small=table(7))
    assert found.allowed == found.drawn == span(0, 6)
    assert found.tables == ("small", "table")


def test_along_another_axis_the_columns_count(known: Known) -> None:
    assert known([node("Gather", ["table", "ids"], ["y"], axis=1)]).allowed == span(0, 3)


@pytest.mark.parametrize(
    ("nodes", "low", "high"),
    [
        ([node("Add", ["ids", "five"], ["i"])], -5, 54),
        ([node("Sub", ["ids", "five"], ["i"])], 5, 64),
        ([node("Sub", ["five", "ids"], ["i"])], -54, 5),
        ([node("Mul", ["ids", "five"], ["i"])], 0, 11),
        ([node("Neg", ["ids"], ["i"])], -59, 0),
        ([node("Abs", ["ids"], ["i"])], -59, 59),
        ([node("Unsqueeze", ["ids", "zero"], ["i"])], 0, 59),
        ([node("Transpose", ["ids"], ["i"])], 0, 59),
        (
            [
                node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
                node("Cast", ["f"], ["i"], to=TensorProto.INT32),
            ],
            0,
            59,
        ),
        (
            [
                node("Cast", ["ids"], ["c"], to=TensorProto.INT32),
                node("Reshape", ["c", "flat"], ["r"]),
                node("Add", ["r", "five32"], ["i"]),
            ],
            -5,
            54,
        ),
        ([node("Concat", ["ids", "row"], ["i"], axis=0)], 0, 59),
    ],
)
def test_ops_that_move_ids_move_their_bounds(
    known: Known, nodes: list[onnx.NodeProto], low: int, high: int
) -> None:
    found = known(
        [*nodes, lookup("i", to="z"), node("ReduceSum", ["z"], ["y"], keepdims=0)],
        ids=ints("N", 3),
        rank=0,
        five=[5],
        five32=np.array([5], np.int32),
        zero=[0],
        flat=[-1],
        row=[[1, 2, 3]],
    )
    assert found.allowed == found.drawn == span(low, high)


def test_a_table_that_is_computed_bounds_nothing(known: Known) -> None:
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0]), lookup(of="t")]
    assert known(nodes) == InputValues()


def test_a_quantised_table_is_one(known: Known) -> None:
    nodes = [node("DequantizeLinear", ["codes", "scale"], ["t"]), lookup(of="t")]
    found = known(nodes, codes=np.ones((2000, 4), np.int8), scale=np.float32(0.5))
    assert found.allowed == span(0, 1999)
    assert found.tables == ("codes",)


def test_what_the_type_cannot_hold_is_no_bound(known: Known) -> None:
    found = known(
        [node("Cast", ["ids"], ["i"], to=TensorProto.INT64), lookup("i", of="big")],
        ids=ints("N", "T", dtype=TensorProto.UINT8),
        big=table(1000),
    )
    assert found.allowed == ()


@pytest.mark.parametrize(
    ("condition", "chosen", "otherwise", "allowed", "drawn"),
    [
        # Counted from the end: then, and only then, an id below 0 is one that was meant.
        (node("Less", ["ids", "zero"], ["c"]), "wrapped", "ids", (-60, 59), (-60, 59)),
        (node("GreaterOrEqual", ["ids", "zero"], ["c"]), "ids", "wrapped", (-60, 59), (-60, 59)),
        # A value beside the table that stands for none, and one that is far from it.
        (node("Equal", ["ids", "below"], ["c"]), "zero", "ids", (-1, 59), (-1, 59)),
        (node("Equal", ["ids", "far"], ["c"]), "zero", "ids", (-100, 59), (0, 59)),
        # What another input decides, this one does not know.
        (node("Greater", ["wide", "zero"], ["c"]), "ids", "zero", None, (0, 59)),
    ],
)
def test_what_a_condition_takes_out(
    known: Known,
    condition: onnx.NodeProto,
    chosen: str,
    otherwise: str,
    allowed: tuple[int, int] | None,
    drawn: tuple[int, int],
) -> None:
    found = known(
        [
            node("Cast", ["x"], ["wide"], to=TensorProto.INT64),
            node("Add", ["ids", "rows"], ["wrapped"]),
            condition,
            node("Where", ["c", chosen, otherwise], ["i"]),
            lookup("i"),
        ],
        ids=ints("N", 4),
        zero=[0],
        rows=[60],
        below=[-1],
        far=[-100],
    )
    assert found.allowed == (span(*allowed) if allowed else ())
    assert found.drawn == span(*drawn)


@pytest.mark.parametrize("first", ["Less", "Not"])
def test_ids_outside_of_a_table_may_be_masked_away(known: Known, first: str) -> None:
    low = [node("GreaterOrEqual", ["ids", "zero"], ["n"]), node("Not", ["n"], ["low"])]
    if first == "Less":
        low = [node("Less", ["ids", "zero"], ["low"])]
    nodes = [
        *low,
        node("Greater", ["ids", "last"], ["high"]),
        node("Or", ["low", "high"], ["c"]),
        node("Where", ["c", "zero", "ids"], ["i"]),
        lookup("i"),
    ]
    found = known(nodes, zero=[0], last=[59])
    assert found.allowed == ()
    assert found.drawn == span(-1, 60), "one beyond each end shows whether an engine masks"


def test_clipped_ids_may_be_anything(known: Known) -> None:
    found = known(
        [node("Clip", ["ids", "zero", "last"], ["i"]), lookup("i")],
        zero=np.int64(0),
        last=np.int64(59),
    )
    assert (found.allowed, found.drawn) == ((), span(-1, 60))
    lower = known([node("Max", ["ids", "zero"], ["i"]), lookup("i")], zero=[0])
    assert (lower.allowed, lower.drawn) == (span(None, 59), span(-1, 59))


def test_what_is_clipped_too_late_is_not(known: Known) -> None:
    found = known(
        [node("Clip", ["ids", "zero", "last"], ["i"]), lookup("i")],
        zero=np.int64(-3),
        last=np.int64(70),
    )
    assert found.allowed == span(0, 59)


def test_a_remainder_is_a_row_whatever_the_id(known: Known) -> None:
    found = known([node("Mod", ["ids", "rows"], ["i"]), lookup("i")], rows=[60])
    assert (found.allowed, found.drawn) == ((), span(-60, 119))
    signed = known([node("Mod", ["ids", "rows"], ["i"], fmod=1), lookup("i")], rows=[60])
    assert signed.allowed == span(0, None)
    wide = known([node("Mod", ["ids", "rows"], ["i"]), lookup("i")], rows=[100])
    assert (wide.allowed, wide.drawn) == ((), span(0, 59))


FIELDS = (IntegerSpan(min=0, max=9), IntegerSpan(min=0, max=59), IntegerSpan(min=0, max=6))


@pytest.mark.parametrize(
    "cuts",
    [
        [node("Slice", ["ids", f"i{i}", f"i{i + 1}", "one"], [f"f{i}"]) for i in range(3)],
        [node("Gather", ["ids", f"i{i}"], [f"f{i}"], axis=1) for i in range(3)],
        [node("Split", ["ids"], ["f0", "f1", "f2"], axis=1, num_outputs=3)],
        [
            node("Transpose", ["ids"], ["t"]),
            *[node("Gather", ["t", f"s{i}"], [f"f{i}"]) for i in range(3)],
        ],
    ],
    ids=["Slice", "Gather", "Split", "Transpose"],
)
def test_columns_that_go_to_tables_of_their_own_have_bounds_of_their_own(
    known: Known, cuts: list[onnx.NodeProto]
) -> None:
    looked = [lookup(f"f{i}", of=name, to=f"e{i}") for i, name in enumerate(("ten", "table", "s"))]
    total = [node("Flatten", [f"e{i}"], [f"v{i}"]) for i in range(3)]
    places = {f"i{i}": [i] for i in range(4)} | {f"s{i}": np.int64(i) for i in range(3)}
    found = known(
        [*cuts, *looked, *total, node("Concat", ["v0", "v1", "v2"], ["y"], axis=1)],
        ids=ints("N", 3),
        rank=2,
        ten=table(10),
        s=table(7),
        one=[1],
        **places,
    )
    assert found.allowed == found.drawn == FIELDS


def test_offsets_of_columns_move_the_bounds_of_columns(known: Known) -> None:
    found = known(
        [node("Add", ["ids", "offsets"], ["i"]), lookup("i")], ids=ints("N", 3), offsets=[0, 10, 50]
    )
    assert found.allowed == tuple(IntegerSpan(min=-n, max=59 - n) for n in (0, 10, 50))


def test_an_element_that_may_be_cut_away_may_be_anything(known: Known) -> None:
    """Whether one is, depends on the length of a request."""
    found = known(
        [node("Slice", ["ids", "one", "end", "one"], ["i"]), lookup("i")], one=[1], end=[2**63 - 1]
    )
    assert (found.allowed, found.drawn) == ((), span(0, 59))


def test_other_lookups(known: Known) -> None:
    """Elements and slices of tables, written places too; a class that is none is not hot."""
    elements = node("GatherElements", ["table", "ids"], ["y"], axis=1)
    assert known([elements], rank=2).allowed == span(0, 3)
    scatter = node("ScatterElements", ["table", "ids", "ones"], ["y"], axis=1)
    assert known([scatter], ids=ints(2, 2), rank=2, ones=np.ones((2, 2), np.float32)).allowed == (
        span(0, 3)
    )
    pairs = known([node("GatherND", ["table", "ids"], ["y"])], ids=ints("N", 2), rank=1)
    assert pairs.allowed == (IntegerSpan(min=0, max=59), IntegerSpan(min=0, max=3))
    hot = known(
        [node("OneHot", ["ids", "depth", "values"], ["y"])],
        depth=np.int64(9),
        values=np.array([0, 1], np.float32),
    )
    assert (hot.allowed, hot.drawn) == ((), span(0, 8))


def branch(of: str, name: str) -> onnx.GraphProto:
    return helper.make_graph([lookup(of=of, to=name)], name, [], [tensor_info(name, ["N", "T", 4])])


def test_of_branches_the_one_that_is_taken_counts(known: Known) -> None:
    """Which one that is, a request decides: what is legal for neither is refused."""
    choose = node(
        "If", ["c"], ["y"], then_branch=branch("table", "a"), else_branch=branch("small", "b")
    )
    nodes = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "zero"], ["c"])]
    found = known([*nodes, choose], small=table(7), zero=np.float32(0))
    assert (found.allowed, found.drawn) == (span(0, 59), span(0, 6))


def test_a_loops_body_looks_up_too(known: Known) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            lookup("inner", to="e"),
            node("ReduceSum", ["e"], ["s"], keepdims=0),
            node("Add", ["sum", "s"], ["next"]),
            node("Identity", ["inner"], ["kept"]),
        ],
        "body",
        [
            ints(name="i"),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            ints("N", "T", name="inner"),
            tensor_info("sum", []),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            ints("N", "T", name="kept"),
            tensor_info("next", []),
        ],
    )
    loop = node("Loop", ["times", "", "ids", "nought"], ["left", "y"], body=body)
    found = known([loop], rank=0, times=np.int64(3), nought=np.float32(0))
    assert found.allowed == span(0, 59)


@pytest.mark.parametrize(
    ("dtype", "drawn"),
    [
        (TensorProto.UINT8, span(0, 255)),
        (TensorProto.INT8, span(-128, 127)),
        (TensorProto.INT32, ()),
    ],
)
def test_numbers_of_eight_bits_are_drawn_over_all_their_type_has(
    known: Known, dtype: int, drawn: tuple[IntegerSpan, ...]
) -> None:
    """A request may hold any: they bound nothing."""
    pixels = ints("N", "T", dtype=dtype)
    cast = node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)
    assert known([cast], ids=pixels, rank=2) == InputValues(drawn=drawn)
