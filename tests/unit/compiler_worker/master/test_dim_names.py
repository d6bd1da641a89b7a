"""Names of dimensions that an exporter left unnamed: what they are taken for, and why."""

from pathlib import Path

import onnx
import psutil
import pytest
from onnx import parser

from compiler_worker.master.opened import StoredMaster
from compiler_worker.master.stored import store_onnx

MASKED = "a = Cast<to = 1> (ids) y = Mul (a, mask)"
MEANS = (
    "axis = Constant <value_ints = [1]> () "
    "y = ReduceMean <keepdims = 0> (a, axis) z = ReduceMean <keepdims = 0> (b, axis)"
)
TOWERS = "int64[?, ?] {}, int64[?, ?] {}, int64[?, ?] {}, int64[?, ?] {}"
TWO_TOWERS = """axis = Constant <value_ints = [1]> ()
    q = Add (query_ids, query_mask) a = ReduceSum <keepdims = 0> (q, axis)
    d = Add (doc_ids, doc_mask) b = ReduceSum <keepdims = 0> (d, axis) y = Add (a, b)"""
OF_TOWERS = {
    "query_ids": ("batch", "query_ids_dim1"),
    "query_mask": ("batch", "query_ids_dim1"),
    "doc_ids": ("batch", "doc_ids_dim1"),
    "doc_mask": ("batch", "doc_ids_dim1"),
    "y": ("batch",),
}
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
            f"({TOWERS.format('query_ids', 'query_mask', 'doc_ids', 'doc_mask')}) => (int64[?] y)",
            TWO_TOWERS,
            OF_TOWERS,
            id="two towers",
        ),
        pytest.param(
            f"({TOWERS.format('query_ids', 'doc_ids', 'query_mask', 'doc_mask')}) => (int64[?] y)",
            TWO_TOWERS,
            OF_TOWERS | {"query_mask": ("batch", "query_ids_dim1")},
            id="two towers, side by side by name",
        ),
        pytest.param(
            f"({TOWERS.format('ids_q', 'ids_d', 'mask_q', 'mask_d')}) => (int64[?] y)",
            TWO_TOWERS.replace("query_ids", "ids_q")
            .replace("query_mask", "mask_q")
            .replace("doc_ids", "ids_d")
            .replace("doc_mask", "mask_d"),
            {
                "ids_q": ("batch", "ids_q_dim1"),
                "mask_q": ("batch", "ids_q_dim1"),
                "ids_d": ("batch", "ids_d_dim1"),
                "mask_d": ("batch", "ids_d_dim1"),
                "y": ("batch",),
            },
            id="two towers, side by side by the end of their names",
        ),
        pytest.param(
            "(float[?, ?, ?] a, float[?, ?, ?] b) => (float[?, ?, ?] y)",
            "t = Transpose <perm = [0, 2, 1]> (b) y = MatMul (a, t)",
            {
                "a": ("batch", "a_dim1", "a_dim2"),
                "b": ("batch", "b_dim1", "a_dim2"),
                "y": ("batch", "a_dim1", "b_dim1"),
            },
            id="each axis on its own",
        ),
        pytest.param(
            "(float[n, ?] x) => (float[?, ?, ?] y)",
            "n = Shape (x) c = Cast <to = 9> (n) m = Compress (n, c) y = Reshape (x, m)",
            {"x": ("n", "x_dim1"), "y": ("n", "x_dim1", "y_dim2")},
            id="fewer axes than are declared",
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
            '(float[s0, s1] x) => (float["rows"] y)',
            "one = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (x, one)",
            {"x": ("batch", "x_dim1"), "y": ("batch",)},
            id="rows that torch computes",
        ),
        pytest.param(
            "(float[n, m] x) => (float[n, m] y)",
            "y = Relu (x)",
            {"x": ("n", "m"), "y": ("n", "m")},
            id="the owner's",
        ),
    ],
)


_WRITTEN = {"__": "?", "double": "2*s0", "computed": "((s0*s1 + s1 - 1)//s1)"}


def stored(interface: str, body: str, folder: Path) -> StoredMaster:
    # What the parser cannot read in a shape is put in afterwards.
    plain = interface.replace("?", "__").replace('"2*s0"', "double").replace('"rows"', "computed")
    text = f'<ir_version: 10, opset_import: ["" : 20]> g {plain} {{ {body} }}'
    model = parser.parse_model(text)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if written := _WRITTEN.get(dim.dim_param):
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
    assert "ONNX Runtime failed wherever they were tried apart" in sequence
    picture = "(float[?, 3, ?, ?] x) => (float[?, 3, ?, ?] y)"
    _, side, _ = (d.words for d in stored(picture, "y = Relu (x)", tmp_path).named_dims)
    assert side.startswith("took 'height' for x[2], unnamed in the file: a name by its place alone")


@pytest.mark.parametrize(
    ("declared", "factor", "wanted"),
    [
        ("batch, 7, 6", 1, ("batch", "seq", 6)),
        ("batch, 7, ?", 1, ("batch", "seq", "y_dim2")),
        ("batch, 7, 6", 2, ("batch", "y_dim1", 6)),
        ("3, 7, 6", 1, ("batch", "seq", 6)),
    ],
)
def test_sizes_of_an_exporters_example_are_corrected(
    declared: str, factor: int, wanted: tuple[str | int, ...], tmp_path: Path
) -> None:
    """torch.export fixes the length of an LSTM's output at that of its example."""
    interface = f"(float[batch, seq, 6] x) => (float[{declared}] y)"
    body = f"""n = Constant <value_ints = [1, {factor}, 1]> () t = Tile (x, n) s = Shape (t)
        k = Identity (s) a = Abs (k) y = Reshape (t, a)"""
    master = stored(interface, body, tmp_path)
    assert master.outputs[0].shape == wanted
    again = store_onnx(master.files["model.onnx"], tmp_path / "again")
    assert (again.digest, again.outputs) == (master.digest, master.outputs)


def test_no_run_is_larger_than_a_host(tmp_path: Path) -> None:
    """What fails at small sizes is not asked for 224 along each of seven axes."""
    interface = "(float[?, ?, ?, ?, ?, ?, ?] x) => (float[?, ?, ?, ?, ?, ?, ?] y)"
    body = "n = Constant <value_ints = [1, 1]> () w = ConstantOfShape (n) y = MatMul (x, w)"
    assert stored(interface, body, tmp_path).outputs[0].shape[1:3] == ("y_dim1", "y_dim2")


def test_without_memory_for_the_weights_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(available=7)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    interface = "(int64[s1, s2] ids, float[s3, s4] mask) => (float[s1, s2] y) <float[1] w = {2}>"
    body = f"n = Add (w, mask) {MASKED.replace(', mask', ', n')}"
    found = {dim.name: dim.basis for dim in stored(interface, body, tmp_path).named_dims}
    assert list(found) == ["batch", "ids_dim1", "mask_dim1"]
    assert "ONNX Runtime computed neither way" in found["ids_dim1"]
