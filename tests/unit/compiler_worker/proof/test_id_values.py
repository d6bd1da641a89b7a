"""Ids are compared through what they were made of: ties are right, neighbours are not."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.proof.id_values import IdSource, IdValues, id_sources
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from tests.faults.judged import record_of, written
from tests.unit.compiler_worker.proof.judges import normal

CLASSES = 64
HEAD = "scores = MatMul (x, w)"
GRAPHS = {
    "ArgMax": (
        f"{{ {HEAD} best = ArgMax <axis = 1, keepdims = 0> (scores) ids = Identity (best) }}",
        "int64[batch] ids",
        IdSource(tensor="scores", axis=1, is_axis_kept=False),
    ),
    "ArgMin, kept": (
        f"{{ {HEAD} best = ArgMin <axis = -1> (scores) ids = Cast <to = 6> (best) }}",
        "int32[batch, 1] ids",
        IdSource(tensor="scores", axis=-1, is_axis_kept=True),
    ),
    "TopK": (
        f"{{ {HEAD} values, ids = TopK (scores, three) }}",
        "int64[batch, 3] ids",
        IdSource(tensor="scores", axis=-1, is_axis_kept=True),
    ),
}


def weights() -> Array:
    """Of classes of which two and two score nearly the same."""
    array = normal(8, CLASSES)
    array[:, 1::2] = array[:, ::2] * np.float32(1 + 1e-6)
    return array


def master(name: str, folder: Path) -> Path:
    body, output, _ = GRAPHS[name]
    three = {"three": np.array([3])} if "three" in body else {}
    return written(folder, f"g (float[batch, 8] x) => ({output}) {body}", w=weights(), **three)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_where_ids_come_from(name: str, tmp_path: Path) -> None:
    path = master(name, tmp_path)
    assert id_sources(path, ["ids"]) == {"ids": GRAPHS[name][2]}


def test_other_integers_have_no_source(tmp_path: Path) -> None:
    graph = "g (int64[batch] x) => (int64[batch] y) { y = Add (x, x) }"
    assert id_sources(written(tmp_path, graph), ["y"]) == {}


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.INT8])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_a_tie_is_right_and_another_class_is_not(
    name: str, precision: Precision, tmp_path: Path
) -> None:
    path = master(name, tmp_path)
    values = IdValues(path, record_of(onnx.load(path)))
    inputs = {"x": normal(6, 8, seed=3)}
    scores = inputs["x"].astype(np.float64) @ weights().astype(np.float64)
    order = np.argsort(scores if "Min" in name else -scores, axis=1)
    wanted = order[:, :3] if name == "TopK" else order[:, :1] if "kept" in name else order[:, 0]
    allowed = DEFAULT_TOLERANCES[precision]
    twins = values.ties("ids", inputs, wanted ^ 1, wanted, allowed)
    farthest = np.broadcast_to(order[:, -1:], order[:, :3].shape)
    other = farthest if name == "TopK" else farthest[:, 0].reshape(wanted.shape)
    strangers = values.ties("ids", inputs, other, wanted, allowed)
    assert twins.shape == wanted.shape
    assert twins.all()
    assert not strangers.any()


def test_what_the_largest_value_may_be_off_by_is_no_tie(tmp_path: Path) -> None:
    """An engine of fp16 knows usual values to 0.0038 here, and so which of these is larger."""
    graph = """g (float[batch, 8] x) => (int64[batch] ids)
        { ids = ArgMax <axis = 1, keepdims = 0> (x) }"""
    path = written(tmp_path, graph)
    values = IdValues(path, record_of(onnx.load(path)))
    allowed = DEFAULT_TOLERANCES[Precision.FP16]
    found, wanted = np.array([1]), np.array([4])
    for second, is_tie in ((1.02, False), (1.005, True)):
        x = np.array([[0.0, 1.0, -1.0, 0.5, second, 0.1, -0.5, -1.0]], np.float32)
        assert values.ties("ids", {"x": x}, found, wanted, allowed).all() == is_tie


def test_an_id_that_no_class_has_is_never_a_tie(tmp_path: Path) -> None:
    path = master("ArgMax", tmp_path)
    values = IdValues(path, record_of(onnx.load(path)))
    inputs, wanted = {"x": np.zeros((2, 8), np.float32)}, np.zeros(2, np.int64)
    allowed = DEFAULT_TOLERANCES[Precision.INT8]
    # All scores are equal here.
    assert values.ties("ids", inputs, wanted + 5, wanted, allowed).all()
    # The last class by numpy's indexing: ONNX gives no such id, and no client knows it.
    for beyond in (CLASSES, -1, -CLASSES - 1):
        assert not values.ties("ids", inputs, wanted + beyond, wanted, allowed).any()
