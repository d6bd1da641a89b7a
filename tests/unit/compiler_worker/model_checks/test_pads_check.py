"""Outputs that pads change where a mask is 0 are compared elsewhere only."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.model_checks.pads_check import masked_outputs, with_masks
from compiler_worker.model_checks.served_master import ServedMaster
from compiler_worker.model_checks.served_shapes import served_shapes
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    InputRecipe,
    InputRole,
    OutputRecipe,
    Recipe,
)
from tests.faults.judged import record_of

MASKED = Recipe(inputs={"mask": InputRecipe(role=InputRole.MASK)})
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=4, max=8), "s": DimRange(min=1, opt=16, max=32)})
FEW = Bucket(dims=BUCKET.dims | {"s": DimRange(min=1, opt=1, max=8)})
FIXED = Bucket(dims=BUCKET.dims | {"s": DimRange(min=16, opt=16, max=16)})
AXES = "one = Constant <value_ints = [1]> () two = Constant <value_ints = [2]> ()"
KEYS = f"{AXES} of = Unsqueeze (mask, one)"
CLOSED = "k = Cast <to = 9> (both) low = Constant <value_float = -1e30> ()"
ATTENTION = (
    "t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) closed = Where (k, s, low) "
    "p = Softmax (closed) y = MatMul (p, x)"
)
# As DeBERTa's: a position that the mask leaves out sees nothing, and takes the mean of all.
OF_MASKED = f"{KEYS} to = Unsqueeze (mask, two) both = Mul (to, of) {CLOSED} {ATTENTION}"
# As BERT's: it sees what all others see.
OF_NONE = f"{KEYS} both = Identity (of) {CLOSED} {ATTENTION}"
# What the mask leaves out is filled in, and so it is what callers want.
FILLED = (
    f"{AXES} w = Unsqueeze (mask, two) k = Cast <to = 9> (w) m = ReduceMean (x, one) "
    "y = Where (k, x, m)"
)
OF_ALL = f"{OF_MASKED.replace('y =', 'z =')} m = ReduceMean (x, one) y = Add (z, m)"


def saved(body: str, folder: Path) -> tuple[Path, onnx.ModelProto]:
    graph = f"g (float[batch, s, 3] x, int64[batch, s] mask) => (float[batch, s, 3] y) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx", model


@pytest.mark.parametrize(
    ("body", "recipe", "bucket", "found"),
    [
        pytest.param(OF_MASKED, MASKED, BUCKET, {"y": "mask"}, id="where the mask is 0"),
        pytest.param(OF_ALL, MASKED, BUCKET, {}, id="everywhere: the proof refuses it"),
        pytest.param(OF_NONE, MASKED, BUCKET, {}, id="nowhere"),
        pytest.param(OF_MASKED, Recipe(), BUCKET, {}, id="no mask"),
        pytest.param(FILLED, MASKED, BUCKET, {}, id="no attention"),
        pytest.param(OF_MASKED, MASKED, FIXED, {}, id="no pads"),
        pytest.param(OF_MASKED, MASKED, FEW, {"y": "mask"}, id="usual sizes of one position"),
        pytest.param(
            OF_MASKED,
            MASKED.model_copy(update={"outputs": {"y": OutputRecipe(valid_where=None)}}),
            BUCKET,
            {},
            id="the recipe says to compare all",
        ),
    ],
)
def test_outputs_that_pads_change_are_found(
    body: str, recipe: Recipe, bucket: Bucket, found: dict[str, str], tmp_path: Path
) -> None:
    path, model = saved(body, tmp_path)
    record = record_of(model)
    served = ServedMaster(path=path, record=record, recipe=recipe, buckets=(bucket,))
    assert masked_outputs(served) == found


def test_what_a_recipe_says_of_an_output_is_kept() -> None:
    blind = {"int8": ("mean only",)}
    own = OutputRecipe.model_validate({"accept_blind": blind})
    output = with_masks(Recipe(outputs={"y": own}), {"y": "mask"}).outputs["y"]
    assert (output.valid_where, output.accept_blind) == ("mask", own.accept_blind)


def test_a_version_is_published_with_it_and_says_so(tmp_path: Path) -> None:
    path, model = saved(OF_MASKED, tmp_path)
    shapes = served_shapes((path, record_of(model)), MASKED, {}, ())
    assert shapes.recipe.outputs["y"].valid_where == "mask"
    assert "'y' changes with padding where 'mask' is 0" in shapes.remarks[0]


def test_what_onnx_runtime_does_not_run_is_left_to_the_proof(tmp_path: Path) -> None:
    """It has no kernel of Relu in bfloat16 on a CPU."""
    body = f"{OF_MASKED.replace('y =', 'z =')} h = Cast <to = 16> (z) r = Relu (h) "
    path, model = saved(body + "y = Cast <to = 1> (r)", tmp_path)
    record = record_of(model)
    served = ServedMaster(path=path, record=record, recipe=MASKED, buckets=(BUCKET,))
    assert masked_outputs(served) == {}
