"""Categories that encoders of a graph know are what its inputs are drawn from."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import draw_sample
from compiler_worker.master.stored import StoredMaster, store_onnx
from services.contracts.model.input_values import InputValues, IntegerSpan
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


# One that a LabelEncoder takes for its default comes last.
CODED = 'ai.onnx.ml.LabelEncoder <keys_strings = ["{}", "b"], values_int64s = [1, 2]>'
BOTH = f"t = Identity (x) s = {CODED.format('a')} (t) r = {CODED.format('c')} (x) y = Add (s, r)"


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        pytest.param(f"y = {CODED.format('a')} (x)", (("a", "b", "unknown"),), id="all places"),
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
    assert known == (*range(0, 1000, 4), 1000)


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


ENCODED = "ai.onnx.ml.LabelEncoder <keys_{0} = {1}, values_int64s = {2}>"


def encoder(keys: list[int] | list[str]) -> str:
    kind = "int64s" if isinstance(keys[0], int) else "strings"
    listed = str(keys).replace("'", '"')
    return ENCODED.format(kind, listed, list(range(len(keys))))


@pytest.mark.parametrize(
    ("of", "keys", "cast", "found"),
    [
        ("string[?, 2]", ["a", "x" * 2000], None, (("a", "unknown"),)),
        ("string", ["a"], None, ()),
        ("int64[?, 2]", ["1", "other"], 8, ()),
        ("float[?, 2]", [3, 2**24 + 1], 7, ((3, 2**24 + 2),)),
        ("float16[?, 2]", [3, 70000], 7, ((3,),)),
        ("uint8[?, 2]", [-1, 0, 1], 7, ((0, 1, 2),)),
        ("int32[?, 2]", [5, 2**63 - 2], 7, ((5,),)),
        ("bool[?, 2]", [0, 1], 7, ((0, 1),)),
    ],
)
def test_a_type_holds_what_it_can(
    of: str, keys: list[int] | list[str], cast: int | None, found: object, tmp_path: Path
) -> None:
    first = f"c = Cast <to = {cast}> (x)" if cast else "c = Identity (x)"
    shape = "".join(of.partition("[")[1:])
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g ({of} x) '
        f"=> (int64{shape} y) {{ {first} y = {encoder(keys)} (c) }}"
    )
    known = stored(model, tmp_path).input_values.get("x", InputValues())
    assert known.choices == found
    if known.choices:
        record = record_of(model).model_copy(update={"input_values": {"x": known}})
        bucket = Bucket(dims={})
        specs = tuple(s.model_copy(update={"shape": (8, 2)}) for s in record.inputs)
        drawn = draw_sample(record.model_copy(update={"inputs": specs}), Recipe(), bucket, {})
        assert set(drawn.inputs["x"].ravel().tolist()) == set(known.choices[0])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("{flat} c = Gather <axis = 1> (r, {at})", id="behind a Reshape of columns"),
        pytest.param("c = Gather <axis = 0> (x, {at})", id="one row"),
    ],
)
def test_a_list_is_of_no_other_place(body: str, tmp_path: Path) -> None:
    """Else an engine that is wrong for other values there would pass."""
    graph = body.format(flat="r = Reshape (x, flat)", at="first")
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g (int64[?, 2] x) '
        "=> (int64[a, b] y, int64[?, 2] z) <int64[2] flat = {-1, 2}, int64[1] first = {0}> "
        f"{{ {graph} y = {encoder([0, 1])} (c) z = Abs (x) }}"
    )
    assert stored(model, tmp_path).input_values.get("x", InputValues()).choices == ()


def test_rows_of_a_table_are_known_beside_categories(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g (int64[?, 2] x) '
        "=> (int64[?, 1] y, float[?, 1, 1] z) "
        "<int64[1] first = {0}, int64[1] second = {1}, float[5, 1] table = {0, 1, 2, 3, 4}> "
        f"{{ a = Gather <axis = 1> (x, first) y = {encoder([10, 20])} (a) "
        "b = Gather <axis = 1> (x, second) z = Gather (table, b) }"
    )
    known = stored(model, tmp_path).input_values["x"]
    assert known.choices == ((10, 20, 21), ())
    assert known.allowed[1] == IntegerSpan(min=0, max=4)
    assert known.words == "one of 10, 20, 21; 0 to 4 (rows of 'table')"
