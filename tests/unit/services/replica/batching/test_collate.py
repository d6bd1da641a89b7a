"""Which models may be joined, and that joining and splitting are exact opposites."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.errors import EngineError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import InputRecipe, InputRole, Recipe
from services.replica.batching.collate import JoinRules
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature
from tests.unit.services.replica.models import make_model, text_model
from tests.unit.services.replica.toy_batcher import text_call


def spec(name: str, *shape: int | str, datatype: str = "INT64") -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def rules_of(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], recipe: Recipe | None = None
) -> JoinRules:
    model = make_model(inputs, outputs, recipe)
    return JoinRules.from_model(model, Signature.from_model(model))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((spec("x", 4),), (spec("y", 4),)),  # no dynamic dimension at all
        ((spec("x", "batch"),), (spec("y", 1),)),  # one answer for all rows
        ((spec("x", "batch"), spec("k", 1)), (spec("y", "batch"),)),  # one input for all rows
        ((spec("x", "batch"),), (spec("y", "batch", "boxes"),)),  # as many as companions need
        ((spec("x", "batch", "batch"),), (spec("y", "batch"),)),  # rows are not independent
    ],
)
def test_models_whose_rows_cannot_be_told_apart_run_one_by_one(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    rules = rules_of(inputs, outputs)
    assert rules.batch_dim is None
    assert rules.merged({"batch": 1}, {"batch": 1}) is None


def test_a_recipe_may_switch_joining_off() -> None:
    recipe = Recipe(batching=Batching(batch_dim=None))
    rules = rules_of((spec("x", "batch"),), (spec("y", "batch"),), recipe)
    assert rules.merged({"batch": 1}, {"batch": 1}) is None


def test_merged_sizes() -> None:
    model = text_model()
    rules = JoinRules.from_model(model, Signature.from_model(model))
    left, right = {"batch": 2, "sequence": 3}, {"batch": 1, "sequence": 9}
    assert rules.merged(left, right) == {"batch": 3, "sequence": 9}
    empty = {"batch": 1, "sequence": 0}
    assert rules.merged(left, empty) is rules.merged(empty, left) is None
    assert rules.merged(empty, empty) == {"batch": 2, "sequence": 0}
    bare = model.model_copy(update={"recipe": Recipe()})
    rules = JoinRules.from_model(bare, Signature.from_model(bare))
    assert rules.merged(left, right) is None
    assert rules.merged(left, left) == {"batch": 4, "sequence": 3}


def test_strings_are_joined_by_rows_and_never_padded() -> None:
    recipe = Recipe(
        inputs={"words": InputRecipe(), "mask": InputRecipe(role=InputRole.MASK)},
    )
    rules = rules_of(
        (spec("words", "batch", "n", datatype="BYTES"), spec("mask", "batch", "n")),
        (spec("labels", "batch", "n", datatype="BYTES"),),
        recipe,
    )
    assert rules.paddable == frozenset()
    assert rules.merged({"batch": 1, "n": 2}, {"batch": 1, "n": 3}) is None
    words = [np.array(rows, dtype=object) for rows in ([["a", ""]], [["Ж", "b"], ["c", "d"]])]
    calls = [
        InferCall(
            inputs={"words": each, "mask": np.ones(each.shape, np.int64)},
            sizes={"batch": len(each), "n": 2},
            outputs=("labels",),
        )
        for each in words
    ]
    for sizes in (None, {"batch": 5, "n": 2}):
        joined = rules.join(calls, sizes)["words"]
        assert joined[:3].tolist() == [["a", ""], ["Ж", "b"], ["c", "d"]]
        assert joined[3:].tolist() == [["c", "d"]] * (len(joined) - 3)
        parts = rules.split({"labels": joined}, calls, sizes)
        assert [part["labels"].tolist() for part in parts] == [each.tolist() for each in words]


def test_it_is_told_once_what_keeps_requests_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = text_model()
    JoinRules.from_model(model, Signature.from_model(model))
    assert not caplog.records
    bare = model.model_copy(update={"recipe": Recipe()})
    JoinRules.from_model(bare, Signature.from_model(bare))
    (said,) = caplog.messages
    assert "requests of different 'sequence' never share a batch" in said


def test_rows_are_made_up_as_copies_of_the_last() -> None:
    model = text_model()
    rules = JoinRules.from_model(model, Signature.from_model(model))
    call = text_call(rows=2, length=3)
    joined = rules.join([call], {"batch": 4, "sequence": 5})
    assert joined["mask"].tolist() == 4 * [[1, 1, 1, 0, 0]]
    assert joined["ids"].tolist() == [[1, 2, 3, 7, 7], *(3 * [[4, 5, 6, 7, 7]])]
    positions = joined["ids"] * joined["mask"]
    outputs = {"positions": positions, "pooled": positions.sum(axis=1, keepdims=True)}
    (part,) = rules.split(outputs, [call], {"batch": 4, "sequence": 5})
    np.testing.assert_array_equal(part["positions"], call.inputs["ids"])
    assert part["pooled"].tolist() == [[6], [15]]


@pytest.mark.parametrize(("pad", "paddable"), [(0, {"sequence"}), (1, {"sequence"}), (0.5, set())])
def test_a_mask_marks_padding_by_zero_or_one(pad: float, paddable: set[str]) -> None:
    model = text_model()
    inputs = {
        "ids": InputRecipe(role=InputRole.VALUES),
        "mask": InputRecipe(role=InputRole.MASK, pad=pad),
    }
    recipe = model.recipe.model_copy(update={"inputs": inputs})
    model = model.model_copy(update={"recipe": recipe})
    assert JoinRules.from_model(model, Signature.from_model(model)).paddable == paddable


@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    lengths=st.lists(st.integers(1, 5), min_size=6, max_size=6),
)
def test_split_undoes_join_when_the_batch_is_no_leading_dimension(
    rows: list[int], lengths: list[int]
) -> None:
    recipe = Recipe(
        inputs={
            "x": InputRecipe(role=InputRole.VALUES, pad=-1),
            "mask": InputRecipe(role=InputRole.MASK),
        }
    )
    x, mask = spec("x", "time", "batch", 2), spec("mask", "batch", "time", datatype="BOOL")
    rules = rules_of((x, mask), (x.model_copy(update={"name": "y"}),), recipe)
    calls = []
    for number, (count, length) in enumerate(zip(rows, lengths, strict=False)):
        array = np.full((length, count, 2), number, np.int64)
        calls.append(
            InferCall(
                inputs={"x": array, "mask": np.ones((count, length), bool)},
                sizes={"batch": count, "time": length},
                outputs=("y",),
            )
        )
    joined = rules.join(calls)
    longest = max(call.sizes["time"] for call in calls)
    assert joined["x"].shape == (longest, sum(rows), 2)
    assert joined["mask"].sum() == sum(call.inputs["mask"].size for call in calls)
    if len(calls) > 1:
        assert (joined["x"][~joined["mask"].T] == -1).all()
    parts = rules.split({"y": joined["x"]}, calls)
    for call, part in zip(calls, parts, strict=True):
        np.testing.assert_array_equal(part["y"], call.inputs["x"])


def test_an_output_with_other_rows_is_an_engine_error() -> None:
    rules = rules_of((spec("x", "batch"),), (spec("y", "batch"),))
    call = InferCall(inputs={"x": np.zeros(2, np.int64)}, sizes={"batch": 2}, outputs=("y",))
    with pytest.raises(EngineError, match="output 'y': expected 4 rows, got 3"):
        rules.split({"y": np.zeros(3, np.int64)}, [call, call])


def test_a_lone_call_is_aligned_without_a_copy_where_it_can_be() -> None:
    rules = rules_of((spec("x", "batch"),), (spec("y", "batch"),))
    memory = np.zeros(33, np.uint8)
    for offset in (0, 1):
        array = np.frombuffer(memory.data[offset : offset + 32], np.int64)
        call = InferCall(inputs={"x": array}, sizes={"batch": 4}, outputs=("y",))
        joined = rules.join([call])["x"]
        assert joined.flags.aligned
        assert np.shares_memory(joined, memory) == array.flags.aligned
