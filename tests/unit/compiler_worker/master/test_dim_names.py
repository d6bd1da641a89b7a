"""Names of dimensions that an exporter left unnamed: what they are taken for, and why."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.master.opened import StoredMaster
from compiler_worker.master.stored import store_onnx

MASKED = "a = Cast<to = 1> (ids) y = Mul (a, mask)"
MEANS = (
    "axis = Constant <value_ints = [1]> () "
    "y = ReduceMean <keepdims = 0> (a, axis) z = ReduceMean <keepdims = 0> (b, axis)"
)
TABLE = pytest.mark.parametrize(
    ("interface", "body", "shapes"),
    [
        pytest.param(
            "(int64[s31, s77] ids, float[s31, s77] mask) => (float[s31, s77] y)",
            MASKED,
            {
                "ids": ("batch", "sequence"),
                "mask": ("batch", "sequence"),
                "y": ("batch", "sequence"),
            },
            id="torch, equal symbols",
        ),
        pytest.param(
            "(int64[unk__6, unk__7] ids, float[unk__8, unk__9] mask) => (float[unk__1, unk__2] y)",
            MASKED,
            {
                "ids": ("batch", "sequence"),
                "mask": ("batch", "sequence"),
                "y": ("batch", "sequence"),
            },
            id="a symbol for each",
        ),
        pytest.param(
            "(int64[ids_dynamic_axes_1] ids) => (float[Castids_dim_0] y)",
            "y = Cast <to = 1> (ids)",
            {"ids": ("batch",), "y": ("batch",)},
            id="torch by tracing",
        ),
        pytest.param(
            "(int64[?, ?] ids, float[?, ?] mask) => (float[?, ?] y)",
            MASKED,
            {
                "ids": ("batch", "sequence"),
                "mask": ("batch", "sequence"),
                "y": ("batch", "sequence"),
            },
            id="none",
        ),
        pytest.param(
            "(float[s0, s1] a, float[s0, s2] b) => (float[s0] y, float[s0] z)",
            MEANS,
            {"a": ("batch", "a_dim1"), "b": ("batch", "b_dim1"), "y": ("batch",), "z": ("batch",)},
            id="sizes of their own",
        ),
        pytest.param(
            "(float[s3, 3, s4, s5] x) => (float[s3, 3, s4, s5] y)",
            "y = Relu (x)",
            {"x": ("batch", 3, "height", "width"), "y": ("batch", 3, "height", "width")},
            id="pictures",
        ),
        pytest.param(
            "(float[rows, s1] a, float[s2, s3] b) => (float[rows] y, float[s2] z)",
            MEANS,
            {"a": ("rows", "a_dim1"), "b": ("rows", "b_dim1"), "y": ("rows",), "z": ("rows",)},
            id="rows that the owner named once",
        ),
        pytest.param(
            "(float[s0] x) => (float[?, 1] y)",
            "i = NonZero (x) j = Transpose (i) y = Cast <to = 1> (j)",
            {"x": ("batch",), "y": ("y_dim0", 1)},
            id="as many as are found",
        ),
        pytest.param(
            "(float[s0, 4] x, float[4] scale) => (float[s0, 4] y)",
            "y = Mul (x, scale)",
            {"x": ("x_dim0", 4), "scale": (4,), "y": ("x_dim0", 4)},
            id="an input without rows",
        ),
        pytest.param(
            '(float[s0, 4] x) => (float["2*s0", 4] y)',
            "y = Concat <axis = 0> (x, x)",
            {"x": ("batch", 4), "y": ("2*batch", 4)},
            id="an expression",
        ),
        pytest.param(
            "(float[n, m] x) => (float[n, m] y)",
            "y = Relu (x)",
            {"x": ("n", "m"), "y": ("n", "m")},
            id="the owner's",
        ),
    ],
)


def stored(interface: str, body: str, folder: Path) -> StoredMaster:
    # What the parser cannot read in a shape is put in afterwards.
    plain = interface.replace("?", "__").replace('"2*s0"', "double")
    text = f'<ir_version: 10, opset_import: ["" : 20]> g {plain} {{ {body} }}'
    model = parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if written := {"__": "?", "double": "2*s0"}.get(dim.dim_param):
                dim.dim_param = written
    onnx.save(model, folder / "model.onnx")
    return store_onnx(folder / "model.onnx", folder / "master")


@TABLE
def test_unnamed_dimensions_get_the_name_of_what_they_are(
    interface: str, body: str, shapes: dict[str, tuple[int | str, ...]], tmp_path: Path
) -> None:
    master = stored(interface, body, tmp_path)
    assert {spec.name: spec.shape for spec in (*master.inputs, *master.outputs)} == shapes
    again = store_onnx(master.files["model.onnx"], tmp_path / "again")
    assert (again.digest, again.named_dims) == (master.digest, ())


def test_what_was_taken_is_said_with_its_places_and_why(tmp_path: Path) -> None:
    interface = "(int64[s1, s2] ids, float[s3, s4] mask) => (float[s1, s2] y)"
    rows, sequence = (dim.words for dim in stored(interface, MASKED, tmp_path).named_dims)
    assert rows == "took 'batch' for ids[0], mask[0], unnamed in the file: axis 0 of every input"
    assert "'sequence' for ids[1], mask[1]" in sequence
    assert "ONNX Runtime computes no other sizes" in sequence
