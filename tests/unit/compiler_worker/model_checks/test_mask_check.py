"""Masks whose 1 marks padding are found, drawn and padded so."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import SampleVariant, draw_sample
from compiler_worker.model_checks.recipe_check import check_recipe
from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.model_checks.served_shapes import (
    padding_masks,
    served_shapes,
    with_padding_masks,
)
from services.contracts.errors import InvalidRecipeError
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    Recipe,
)
from services.replica.engine.samples import sample_inputs
from tests.faults.judged import record_of

BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8), "s": DimRange(min=1, opt=16, max=32)})
ATTENTION = """
    one = Constant <value_ints = [1]> ()
    of = Unsqueeze (mask, one)
    {closed}
    t = Transpose <perm = [0, 2, 1]> (x)
    s = MatMul (x, t)
    masked = Where (k, low, s)
    p = Softmax (masked)
    y = MatMul (p, x)
"""
PADDING = ATTENTION.format(closed="k = Identity (of)")
VALID = ATTENTION.format(closed="k = Not (of)")
TURNED = Recipe(inputs={"mask": InputRecipe(pad=1)})


def saved(body: str, folder: Path) -> tuple[Path, onnx.ModelProto]:
    graph = f"g (float[batch, s, 3] x, bool[batch, s] mask) => (float[batch, s, 3] y) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    low = np.array(-np.inf, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(low, "low"))
    onnx.save(model, folder / "model.onnx")
    # By its type a mask of booleans is known to be one.
    return folder / "model.onnx", onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("body", "recipe", "found"),
    [
        pytest.param(PADDING, Recipe(), ("mask",), id="as PyTorch's key_padding_mask"),
        pytest.param(VALID, Recipe(), (), id="as transformers' attention_mask"),
        pytest.param(
            PADDING, Recipe(inputs={"mask": InputRecipe(role=InputRole.MASK)}), (), id="as said"
        ),
    ],
)
def test_the_value_that_marks_padding_is_found(
    body: str, recipe: Recipe, found: tuple[str, ...], tmp_path: Path
) -> None:
    path, model = saved(body, tmp_path)
    record = record_of(model)
    served = ServedMaster(path=path, record=record, recipe=recipe, buckets=(BUCKET,))
    assert padding_masks(served) == found


def test_a_version_is_published_with_it_and_joins_requests(tmp_path: Path) -> None:
    path, model = saved(PADDING, tmp_path)
    shapes = served_shapes((path, record_of(model)), Recipe(), {}, ())
    assert shapes.recipe == with_padding_masks(Recipe(), ["mask"])
    assert shapes.remarks[0].startswith("'mask' is 1 where there is padding")


def test_proofs_and_replicas_draw_it_the_other_way_round(tmp_path: Path) -> None:
    _, model = saved(PADDING, tmp_path)
    record = record_of(model)
    for variant in (SampleVariant.FULL, SampleVariant.RAGGED):
        usual, turned = (
            draw_sample(record, each, BUCKET, {"batch": 4, "s": 8}, variant=variant).inputs["mask"]
            for each in (Recipe(), TURNED)
        )
        assert (turned == ~usual).all()
    inputs = {"mask": InputRecipe(role=InputRole.MASK, pad=1)}
    assert not sample_inputs(record, inputs, {"batch": 1, "s": 2})["mask"].any()


def test_it_does_not_say_what_is_valid(tmp_path: Path) -> None:
    _, model = saved(PADDING, tmp_path)
    outputs = {"y": OutputRecipe(valid_where="mask")}
    with pytest.raises(InvalidRecipeError, match=r"'mask' marks padding \(pad: 1\)"):
        check_recipe(record_of(model), TURNED.model_copy(update={"outputs": outputs}))
