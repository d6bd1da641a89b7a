"""Integers of proof inputs: the recipe's range, else the graph's, else two values."""

import numpy as np
import pytest

from compiler_worker.inputs.integer_draws import undescribed
from compiler_worker.inputs.sampling import draw_sample, proof_samples
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.input_values import InputValues, IntegerSpan
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe

BUCKET = Bucket(dims={"n": DimRange(min=1, opt=4, max=8), "t": DimRange(min=1, opt=16, max=32)})
SIZES = {"n": 4, "t": 16}


def master(
    known: InputValues | None, datatype: str = "INT64", width: int | str = "t"
) -> MasterRecord:
    return MasterRecord(
        digest="d" * 64,
        files={},
        inputs=(TensorSpec(name="ids", datatype=datatype, shape=("n", width)),),
        outputs=(),
        opset=20,
        num_parameters=0,
        input_values={} if known is None else {"ids": known},
    )


def values(*spans: tuple[int | None, int | None]) -> InputValues:
    return InputValues(drawn=tuple(IntegerSpan(min=low, max=high) for low, high in spans))


def drawn(known: InputValues | None, recipe: InputRecipe | None = None) -> np.ndarray:
    asked = Recipe(inputs={"ids": recipe} if recipe else {})
    return draw_sample(master(known), asked, BUCKET, SIZES).inputs["ids"]


@pytest.mark.parametrize(
    ("known", "recipe", "ends"),
    [
        (values((0, 30521)), None, (0, 30521)),
        (values((-5, 54)), None, (-5, 54)),
        (values((0, 99)), InputRecipe(low=10, high=20), (10, 19)),
        (values((0, 99)), InputRecipe(low=10), (10, 99)),
        (values((0, 99)), InputRecipe(max=49), (0, 49)),
        (values((None, 59)), None, (58, 59)),
        (values((7, None)), None, (7, 8)),
        (None, InputRecipe(min=0, max=70), (0, 70)),
        (None, InputRecipe(high=40), (0, 39)),
        (None, InputRecipe(pad=1), (0, 1)),
        (None, None, (0, 1)),
    ],
)
def test_the_range_and_both_of_its_ends(
    known: InputValues | None, recipe: InputRecipe | None, ends: tuple[int, int]
) -> None:
    array = drawn(known, recipe)
    assert (array.min(), array.max()) == ends
    assert array.dtype == np.int64


def test_a_wide_range_is_drawn_everywhere() -> None:
    array = drawn(values((0, 999)))
    quarters = np.histogram(array, bins=4, range=(0, 999))[0]
    assert (quarters > array.size / 10).all()


def test_the_ends_lie_where_a_mask_has_its_valid_positions() -> None:
    array = drawn(values((0, 10**6)))
    assert (array[0, 0], array[1, 0]) == (0, 10**6)


def test_a_single_row_has_both_ends_too() -> None:
    array = draw_sample(master(values((0, 10**6))), Recipe(), BUCKET, {"n": 1, "t": 8}).inputs[
        "ids"
    ]
    assert {0, 10**6} <= set(array.ravel().tolist())
    single = draw_sample(master(values((0, 9))), Recipe(), BUCKET, {"n": 1, "t": 1}).inputs["ids"]
    assert 0 <= single.item() <= 9
    empty = draw_sample(master(values((0, 9))), Recipe(), BUCKET, {"n": 1, "t": 0}).inputs["ids"]
    assert empty.shape == (1, 0)


def test_columns_have_ranges_and_ends_of_their_own() -> None:
    known = values((0, 9), (-5, 54), (100, 3000))
    columns = draw_sample(master(known, width=3), Recipe(), BUCKET, SIZES).inputs["ids"]
    assert columns.min(axis=0).tolist() == [0, -5, 100]
    assert columns.max(axis=0).tolist() == [9, 54, 3000]


def test_an_unsigned_input_keeps_its_type() -> None:
    record = master(values((0, 255)), datatype="UINT8")
    array = draw_sample(record, Recipe(), BUCKET, SIZES).inputs["ids"]
    assert (array.dtype, array.max()) == (np.uint8, 255)


def test_a_mask_that_only_the_graph_knows_is_ragged() -> None:
    record = master(InputValues(role=InputRole.MASK))
    lengths = {
        int(length)
        for sample in proof_samples(record, Recipe(), [BUCKET])
        for length in sample.inputs["ids"].sum(axis=1)
    }
    assert {1, 32} < lengths
    ranged = Recipe(inputs={"ids": InputRecipe(low=3, high=9)})
    array = draw_sample(record, ranged, BUCKET, SIZES).inputs["ids"]
    assert (array.min(), array.max()) == (3, 8), "the recipe's own word counts before the graph's"


def test_integers_of_which_nothing_is_said_are_told() -> None:
    (told,) = undescribed(master(None), Recipe())
    assert told.startswith("neither the graph nor the recipe says which integers 'ids' takes")
    assert "inputs: {ids: {low: ..., high: ...}}" in told
    said = [InputRecipe(high=40), InputRecipe(max=9), InputRecipe(role=InputRole.MASK)]
    assert all(undescribed(master(None), Recipe(inputs={"ids": each})) == [] for each in said)
    for known in (values((0, 9)), InputValues(role=InputRole.MASK)):
        assert undescribed(master(known), Recipe()) == []
    assert undescribed(master(None, datatype="FP32"), Recipe()) == []
