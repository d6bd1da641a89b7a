"""Which inputs are masks, told by what a graph does with them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler_worker.master.stored import store_onnx
from services.contracts.model.input_values import InputValues
from services.contracts.model.recipe import InputRole
from tests.unit.compiler_worker.master.conftest import MakeModel, tensor_info

node = helper.make_node
MASK = InputValues(role=InputRole.MASK)
Known = Callable[..., InputValues]


@pytest.fixture
def known(make_model: MakeModel, save: Callable[..., Path], tmp_path: Path) -> Known:
    """What is known of the input `mask` of a graph that goes on from `x` to `y`."""

    def infer(
        nodes: Sequence[onnx.NodeProto],
        *,
        dtype: int = TensorProto.INT64,
        shape: Sequence[Any] = ("N", "T"),
        **weights: Any,
    ) -> InputValues:
        model = make_model(
            list(nodes),
            inputs=[
                helper.make_tensor_value_info("mask", dtype, shape),
                tensor_info("x", ["N", "T"]),
            ],
            outputs=[tensor_info("y", [None, None])],
            weights={name: np.asarray(each) for name, each in weights.items()},
        )
        stored = store_onnx(save(model), tmp_path / "stored")
        return stored.input_values.get("mask", InputValues())

    return infer


FLOAT = node("Cast", ["mask"], ["f"], to=TensorProto.FLOAT)
CHOOSE = node("Where", ["c", "x", "low"], ["y"])


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Cast", ["mask"], ["c"], to=TensorProto.BOOL), CHOOSE],
        [node("Equal", ["mask", "one"], ["c"]), CHOOSE],
        [node("Greater", ["mask", "zero"], ["c"]), CHOOSE],
        [
            FLOAT,
            node("Sub", ["high", "f"], ["n"]),
            node("Mul", ["n", "low"], ["p"]),
            node("Add", ["x", "p"], ["y"]),
        ],
        [
            node("Unsqueeze", ["mask", "one"], ["u"]),
            node("Unsqueeze", ["mask", "last"], ["v"]),
            node("Mul", ["u", "v"], ["s"]),
            node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
            node("Unsqueeze", ["x", "one"], ["w"]),
            node("Where", ["c", "w", "low"], ["z"]),
            node("ReduceSum", ["z", "one"], ["y"], keepdims=0),
        ],
        [
            node("Unsqueeze", ["mask", "zeros"], ["u"]),
            node("Squeeze", ["u", "zeros"], ["s"]),
            node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
            CHOOSE,
        ],
    ],
    ids=["cast", "equal", "greater", "taken from one", "pairs", "moved"],
)
def test_a_mask_is_told_by_its_use(known: Known, nodes: list[onnx.NodeProto]) -> None:
    found = known(
        nodes, one=[1], last=[2], zero=[0], zeros=[0], high=np.float32(1), low=np.float32(-1e4)
    )
    assert found == MASK


def test_booleans_that_choose_are_a_mask_and_features_are_none(known: Known) -> None:
    chosen = node("Where", ["mask", "x", "low"], ["y"])
    assert known([chosen], dtype=TensorProto.BOOL, low=np.float32(-1e4)) == MASK
    weighed = [FLOAT, node("Mul", ["f", "x"], ["y"])]
    assert known(weighed, dtype=TensorProto.BOOL) == InputValues()


def test_a_number_of_classes_is_no_mask(known: Known) -> None:
    """It is compared with more than 0 and 1."""
    nodes = [
        node("Equal", ["mask", "one"], ["a"]),
        node("Equal", ["mask", "two"], ["b"]),
        node("Or", ["a", "b"], ["c"]),
        CHOOSE,
    ]
    assert known(nodes, one=[1], two=[2], low=np.float32(0)) == InputValues()


def test_ids_that_also_say_where_padding_is_are_ids(known: Known) -> None:
    nodes = [
        node("Equal", ["mask", "zero"], ["c"]),
        node("Gather", ["table", "mask"], ["e"]),
        node("Where", ["c", "e", "x"], ["y"]),
    ]
    found = known(nodes, zero=[0], table=np.zeros(9, np.float32))
    assert found.role is InputRole.VALUES
    assert found.tables == ("table",)


def test_flags_of_rows_have_no_positions(known: Known) -> None:
    nodes = [node("Cast", ["mask"], ["c"], to=TensorProto.BOOL), CHOOSE]
    assert known(nodes, shape=("N", 1), low=np.float32(0)) == InputValues()
