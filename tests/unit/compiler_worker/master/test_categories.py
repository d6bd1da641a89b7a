"""Categories that encoders of a graph know are what its inputs are drawn from."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.master.stored import StoredMaster, store_onnx
from services.contracts.model.input_values import InputValues
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.encoders import CODES, PORTS, encoders
from tests.faults.judged import record_of

KNOWN = {
    "port": InputValues(choices=((), PORTS)),
    "code": InputValues(choices=((), CODES)),
}


def stored(model: onnx.ModelProto, folder: Path) -> StoredMaster:
    onnx.save(model, folder / "m.onnx")
    return store_onnx(folder / "m.onnx", folder / "stored")


def test_each_column_has_the_list_of_its_encoder_and_rows_their_name(tmp_path: Path) -> None:
    found = stored(encoders(), tmp_path)
    assert found.input_values == KNOWN
    # Zeros and empty strings are no categories: the runs that tie dimensions take some.
    assert found.outputs[0].shape == ("batch", 7)
    assert [KNOWN[each].words for each in KNOWN] == [
        "any value; one of 'C', 'Q', 'S'",
        "any value; one of 10, 13, 19",
    ]


CODED = 'ai.onnx.ml.LabelEncoder <keys_strings = ["{}", "b"], values_int64s = [1, 2]>'
BOTH = f"t = Identity (x) s = {CODED.format('a')} (t) r = {CODED.format('c')} (x) y = Add (s, r)"


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        pytest.param(f"y = {CODED.format('a')} (x)", (("a", "b"),), id="all places"),
        pytest.param(BOTH, (), id="two encoders that know other ones"),
        pytest.param("y = Shape (x)", (), id="no encoder"),
    ],
)
def test_other_graphs(body: str, choices: tuple[tuple[str, ...], ...], tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g (string[N, 2] x)'
    shape = "2" if "Shape" in body else "N, 2"
    found = stored(parser.parse_model(f"{head} => (int64[{shape}] y) {{ {body} }}"), tmp_path)
    assert found.input_values.get("x", InputValues()).choices == choices


def test_of_a_long_list_some_are_kept_evenly(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g (int64[N] x) => (int64[N] y)'
        f" {{ y = ai.onnx.ml.LabelEncoder <keys_int64s = {list(range(1000))}, "
        f"values_int64s = {list(range(1000))}> (x) }}"
    )
    (known,) = stored(model, tmp_path).input_values["x"].choices
    assert known == tuple(range(0, 1000, 4))


def test_proofs_draw_them_unless_the_recipe_says_what(tmp_path: Path) -> None:
    found = stored(encoders(), tmp_path)
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=8, max=8)})
    record = record_of(encoders()).model_copy(
        update={"inputs": found.inputs, "input_values": found.input_values}
    )
    drawn = draw_sample(record, Recipe(), bucket, {"batch": 8}).inputs
    assert set(drawn["port"][:, 1].tolist()) == set(PORTS)
    assert not set(drawn["port"][:, 0].tolist()) & set(PORTS)
    assert set(drawn["code"][:, 1].tolist()) == set(CODES)
    assert drawn["code"].dtype == np.float32
    own = Recipe(inputs={"port": InputRecipe(values=("X",)), "code": InputRecipe(low=1, high=2)})
    drawn = draw_sample(record, own, bucket, {"batch": 8}).inputs
    assert set(drawn["port"].ravel().tolist()) == {"X"}
    assert ((drawn["code"] >= 1) & (drawn["code"] < 2)).all()
