"""Numbers that trees and scalers of a graph show are what its inputs are drawn from."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import SampleVariant, draw_sample, proof_samples
from compiler_worker.master.stored import store_onnx
from services.contracts.model.input_values import InputValues, Ranges
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.faults.judged import record_of

HEAD = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : {}]> g ({}) => ({})'
BUCKET = Bucket(dims={"batch": DimRange(min=1, opt=8, max=8)})
# Trees of one split each: by feature, how it is compared and with what.
TREES = """ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = {trees},
    nodes_nodeids = {nodes}, nodes_featureids = {features}, nodes_modes = {modes},
    nodes_values = {values}, nodes_truenodeids = {yes}, nodes_falsenodeids = {no},
    target_treeids = {leaf_trees}, target_nodeids = {leaves}, target_ids = {targets},
    target_weights = {weights}>"""


def trees(*splits: tuple[int, float], mode: str = "BRANCH_LEQ") -> str:
    """An op whose trees have one split each."""
    num = len(splits)
    return TREES.format(
        trees=[n for n in range(num) for _ in range(3)],
        nodes=[0, 1, 2] * num,
        features=[f for feature, _ in splits for f in (feature, 0, 0)],
        modes=str([m for _ in splits for m in (mode, "LEAF", "LEAF")]).replace("'", '"'),
        values=[v for _, value in splits for v in (float(value), 0.0, 0.0)],
        yes=[1, 0, 0] * num,
        no=[2, 0, 0] * num,
        leaf_trees=[n for n in range(num) for _ in range(2)],
        leaves=[1, 2] * num,
        targets=[0, 0] * num,
        weights=[w for n in range(num) for w in (float(n + 1), -float(n + 1))],
    )


def record(
    body: str,
    folder: Path,
    inputs: str = "float[batch, 3] x",
    outputs: str = "float[batch, 1] y",
    opset: int = 3,
) -> MasterRecord:
    """The record of a master of this graph."""
    model = parser.parse_model(f"{HEAD.format(opset, inputs, outputs)} {body}")
    onnx.save(model, folder / "m.onnx")
    found = store_onnx(folder / "m.onnx", folder / "stored")
    update = {"inputs": found.inputs, "input_values": found.input_values}
    return record_of(model).model_copy(update=update)


def ranges(known: MasterRecord, name: str = "x") -> Ranges:
    return known.input_values.get(name, InputValues()).ranges


SPLITS = trees((0, 30.5), (0, 80), (2, 0.5), (2, 7), (2, 500))
AGE = (30.5 - 24.75, 30.5, 80, 80 + 24.75)
FARE = (0.5 - 499.5 / 3, 0.5, 7, 500, 500 + 499.5 / 3)


def test_each_column_has_the_thresholds_of_its_trees_and_ends_beyond_them(tmp_path: Path) -> None:
    found = record(f"{{ y = {SPLITS} (x) }}", tmp_path)
    assert [*map(pytest.approx, ranges(found))] == [AGE, (), FARE]
    words = found.input_values["x"].words
    assert (
        words == "any value, drawn from 5.75 to 105; any value; any value, drawn from -166 to 666"
    )


def test_every_threshold_is_crossed_and_other_columns_are_drawn_as_before(tmp_path: Path) -> None:
    found = record(f"{{ y = {SPLITS} (x) }}", tmp_path)
    samples = proof_samples(found, Recipe(), [BUCKET])
    rows = np.concatenate([each.inputs["x"] for each in samples if not each.variant.is_extreme])
    for column, thresholds in ((0, (30.5, 80)), (2, (0.5, 7, 500))):
        parts = np.bincount(np.searchsorted(thresholds, rows[:, column]))
        # By chance alone: as many in each part.
        assert (parts > len(rows) / len(parts) / 3).all()
    bare = found.model_copy(update={"input_values": {}})
    plain = draw_sample(bare, Recipe(), BUCKET, {"batch": 8}).inputs["x"]
    drawn = draw_sample(found, Recipe(), BUCKET, {"batch": 8}).inputs["x"]
    assert (drawn[:, 1] == plain[:, 1]).all()


def test_features_are_drawn_far_from_their_middle_near_it_and_zero_too(tmp_path: Path) -> None:
    """An engine may be wrong there alone: a half overflows, and an epsilon counts."""
    found = record(f"{{ y = {SPLITS} (x) }}", tmp_path)
    samples = proof_samples(found, Recipe(), [BUCKET])
    drawn = {each.variant: each.inputs["x"] for each in samples if each.variant.is_extreme}
    assert (drawn[SampleVariant.ZERO] == 0).all()
    middle = (AGE[0] + AGE[-1]) / 2
    half = (AGE[-1] - AGE[0]) / 2
    away = {variant: np.abs(each[:, 0] - middle) / half for variant, each in drawn.items()}
    assert away[SampleVariant.LARGE].max() > 3
    assert away[SampleVariant.SMALL].max() < 1 / 32


def test_no_range_is_drawn_of_numbers_that_are_none(tmp_path: Path) -> None:
    endless = "ai.onnx.ml.Scaler <offset = [0.0, 0.0, 0.0], scale = [inf, inf, inf]>"
    assert ranges(record(f"{{ y = {endless} (x) }}", tmp_path)) == ()


def test_a_recipes_least_number_cuts_the_range_and_keeps_the_rest() -> None:
    known = InputValues(ranges=((-10.0, 30.0, 80.0),))
    assert known.ranges_beside(InputRecipe(min=0)) == ((0, 30.0, 80.0),)
    below = InputValues(ranges=((-10.0, -5.0),))
    assert below.ranges_beside(InputRecipe(min=0)) == ((),)


def test_a_recipe_says_otherwise(tmp_path: Path) -> None:
    found = record(f"{{ y = {SPLITS} (x) }}", tmp_path)
    own = Recipe(inputs={"x": InputRecipe(low=1000, high=1001)})
    samples = proof_samples(found, own, [BUCKET])
    assert all(((s.inputs["x"] >= 1000) & (s.inputs["x"] <= 1001)).all() for s in samples)


SCALER = "ai.onnx.ml.Scaler <offset = [40.0, 0.0, 100.0], scale = [0.05, 1.0, 0.01]>"
SCALED = ((0, 80), (), (-100, 300))
IMPUTER = "ai.onnx.ml.Imputer <imputed_value_floats = [1.0]>"
LINEAR = """ai.onnx.ml.LinearClassifier <coefficients = [0.1, 0.0, 80.0], intercepts = [-6.0],
    classlabels_ints = [1]>"""
CONSTANTS = "<float[3] mean = {40, 0, 100}, float[3] spread = {20, 1, 100}, float by = {0.01}>"
VECTORS = """ai.onnx.ml.SVMRegressor <support_vectors = [1.0, 2.0, 5.0, 3.0, 2.0, 9.0],
    coefficients = [1.0, 1.0], n_supports = 2, rho = [0.0], kernel_params = [0.1, 0.0, 3.0],
    kernel_type = "RBF">"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(f"{{ y = {SCALER} (x) }}", SCALED, id="Scaler"),
        pytest.param(f"{{ i = {IMPUTER} (x) y = {SCALER} (i) }}", SCALED, id="behind an Imputer"),
        pytest.param(
            f"{{ l, y = {LINEAR} (x) }}",
            ((-80, 80), (), (-0.1, 0.1)),
            id="as far as weights move the scores",
        ),
        pytest.param(
            f"{{ s = {SCALER} (x) y = {trees((0, 0.5), (1, 30))} (s) }}",
            ((48.75, 50, 51.25), (26.25, 30, 33.75), (-100, 300)),
            id="thresholds behind a Scaler",
        ),
        pytest.param(
            f"{{ a = {trees((0, 10))} (x) b = {trees((0, 90), (1, 4))} (x) y = Add (a, b) }}",
            ((8.75, 10, 11.25, 78.75, 90, 101.25), (3.5, 4, 4.5), ()),
            id="two uses",
        ),
        pytest.param(
            f"{CONSTANTS} {{ c = Sub (x, mean) y = Div (c, spread) }}", SCALED, id="Sub and Div"
        ),
        pytest.param(
            f"{CONSTANTS} {{ c = Sub (mean, x) d = Div (c, spread) y = Clip (d) }}",
            SCALED,
            id="from a constant",
        ),
        pytest.param(
            f"{CONSTANTS} {{ c = Mul (x, by) y = Sub (c, mean) }}",
            ((3800, 4200), (-200, 200), (9800, 10200)),
            id="Mul and Sub",
        ),
        pytest.param(f"{CONSTANTS} {{ y = Sub (x, mean) }}", (), id="not scaled"),
        pytest.param(f"{CONSTANTS} {{ y = Mul (x, spread) }}", (), id="not shifted"),
        pytest.param(f"{{ y = {SCALER.replace('40.0, ', '')} (x) }}", (), id="a wrong Scaler"),
        pytest.param("{ y = ai.onnx.ml.Normalizer (x) }", (), id="rows that are normalised"),
        pytest.param(
            "{ y = ai.onnx.ml.Scaler <offset = [40.0], scale = [0.05]> (x) }",
            ((0, 80),),
            id="all columns",
        ),
        pytest.param(f"{{ y = {VECTORS} (x) }}", ((1, 3), (), (5, 9)), id="support vectors"),
    ],
)
def test_other_graphs(body: str, found: Ranges, tmp_path: Path) -> None:
    outputs = "int64[batch] l, float[batch, n] y" if "l, y" in body else "float[batch, n] y"
    known = ranges(record(body, tmp_path, outputs=outputs))
    # Attributes are float32: 0.05 is a little more there.
    assert [pytest.approx(each, rel=1e-6, abs=1e-5) for each in found] == [*known]


def test_columns_of_several_inputs_and_of_parts(tmp_path: Path) -> None:
    """As skl2onnx writes a ColumnTransformer; ONNX infers no shape behind the Imputer."""
    body = f"""<int64[1] last = {{2}}> {{
        part = ai.onnx.ml.ArrayFeatureExtractor (x, last) number = Cast <to = 1> (age)
        both = Concat <axis = 1> (number, part) i = {IMPUTER} (both)
        more = Concat <axis = 1> (i, x) y = {trees((0, 30), (1, 500), (3, 2))} (more) }}"""
    found = record(body, tmp_path, inputs="int64[batch, 1] age, float[batch, 3] x")
    assert ranges(found, "age") == ((26, 30, 34),)
    assert ranges(found) == ((), (1.75, 2, 2.25), (437.5, 500, 562.5))
    ages = draw_sample(found, Recipe(), BUCKET, {"batch": 8}).inputs["age"]
    assert ages.dtype == np.int64
    assert set(ages.ravel().tolist()) <= set(range(26, 35))
    limited = Recipe(inputs={"age": InputRecipe(min=0, max=2)})
    assert draw_sample(found, limited, BUCKET, {"batch": 8}).inputs["age"].max() == 2


def test_newest_op_of_trees(tmp_path: Path) -> None:
    body = """{ y = ai.onnx.ml.TreeEnsemble <n_targets = 1, tree_roots = [0],
        nodes_featureids = [1], nodes_modes = uint8[1] {0}, nodes_splits = float[1] {30},
        nodes_truenodeids = [0], nodes_trueleafs = [1], nodes_falsenodeids = [1],
        nodes_falseleafs = [1], leaf_targetids = [0, 0], leaf_weights = float[2] {1, 2}> (x) }"""
    assert ranges(record(body, tmp_path, opset=5)) == ((), (26.25, 30, 33.75), ())


def test_what_is_compared_for_equality_alone_is_a_category(tmp_path: Path) -> None:
    equal = trees((0, 3), (0, 5), (1, 2), mode="BRANCH_EQ")
    body = f"{{ a = {equal} (x) b = {trees((1, 30))} (x) y = Add (a, b) }}"
    known = record(body, tmp_path).input_values["x"]
    # Column 1 is a category to one op, and not to the other.
    assert known.choices == ((3, 5, 6), (2, 3), ())
    assert known.ranges == ((), (26.25, 30, 33.75), ())


def test_of_many_thresholds_some_are_kept_with_the_outermost(tmp_path: Path) -> None:
    body = f"{{ y = {trees(*((0, n) for n in range(1, 1001)))} (x) }}"
    known = ranges(record(body, tmp_path))[0]
    assert len(known) == 64
    assert known[0] == pytest.approx(1 - 125)
    assert known[-1] == pytest.approx(1125)


def test_of_many_columns_the_ends_are_known(tmp_path: Path) -> None:
    body = f"{{ y = {trees((0, 30), (2999, 500), (2999, 600))} (x) }}"
    found = record(body, tmp_path, inputs="float[batch, 3000] x")
    assert (len(ranges(found)), ranges(found)[0]) == (3000, (26.25, 33.75))
    assert ranges(found)[2999] == (425, 675)
    drawn = draw_sample(found, Recipe(), BUCKET, {"batch": 8}).inputs["x"]
    assert drawn[:, 0].min() > 26
    assert drawn[:, 2999].min() > 424


def test_an_integer_that_is_looked_up_is_drawn_within_its_table(tmp_path: Path) -> None:
    body = f"""<float[5, 1] table = {{0, 1, 2, 3, 4}}> {{ a = Gather (table, x)
        n = Cast <to = 1> (x) b = {trees((0, 30))} (n) y = Add (a, b) }}"""
    found = record(body, tmp_path, inputs="int64[batch, 1] x", outputs="float[batch, a, b] y")
    assert ranges(found) == ()
    assert draw_sample(found, Recipe(), BUCKET, {"batch": 8}).inputs["x"].max() == 4
