"""Classifiers that end in ZipMap: the table in place of its maps, and what stays refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from compiler_worker.master.opened import MODEL_FILE
from compiler_worker.master.stored import store_onnx
from compiler_worker.master.zipmaps import class_table, common_labels, table_words
from services.contracts.errors import UnsupportedGraphError

Save = Callable[..., Path]
HEAD = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 1]> g '
MAPS = "seq(map(int64, float[]))"
TEXTS = "seq(map(string, float[]))"
ZIPMAP = "ai.onnx.ml.ZipMap"
INTEGERS = f"{ZIPMAP} <classlabels_int64s = [7, -1, 3]>"
STRINGS = f'{ZIPMAP} <classlabels_strings = ["b", "a", "ü"]>'
CASES = {
    "integers": (
        f"(float[?, 3] x) => ({MAPS} y) {{ s = Softmax (x)  y = {INTEGERS} (s) }}",
        {"y": ("7", "-1", "3")},
        ("7", "-1", "3"),
    ),
    "strings": (
        f"(float[?, 3] x) => ({TEXTS} y) {{ s = Softmax (x)  y = {STRINGS} (s) }}",
        {"y": ("b", "a", "ü")},
        ("b", "a", "ü"),
    ),
    "of an input, and no other op": (
        f"(float[?, 3] x) => ({MAPS} y) {{ y = {INTEGERS} (x) }}",
        {"y": ("7", "-1", "3")},
        ("7", "-1", "3"),
    ),
    "several of one table, which is an output too": (
        f"""(float[?, 3] x) => ({MAPS} y, {TEXTS} z, float[?, 3] s)
            {{ s = Softmax (x)  y = {INTEGERS} (s)  z = {STRINGS} (s) }}""",
        {"y": ("7", "-1", "3"), "z": ("b", "a", "ü")},
        (),
    ),
}


@pytest.mark.parametrize(("text", "classes", "labels"), CASES.values(), ids=CASES.keys())
def test_the_table_is_the_output_and_equals_the_maps(
    text: str,
    classes: dict[str, tuple[str, ...]],
    labels: tuple[str, ...],
    save: Save,
    tmp_path: Path,
) -> None:
    path = save(parser.parse_model(HEAD + text))
    stored = store_onnx(path, tmp_path / "target")
    assert dict(stored.classes) == classes
    assert common_labels(stored.classes) == labels
    assert {spec.shape for spec in stored.outputs} == {("batch", 3)}
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}
    wanted, found = (ran(each, feeds) for each in (path, stored.files[MODEL_FILE]))
    assert list(found) == list(wanted)
    for name, columns in classes.items():
        np.testing.assert_array_equal(found[name], class_table(wanted[name], columns))
    again = store_onnx(stored.files[MODEL_FILE], tmp_path / "again")
    assert again.digest == stored.digest


def ran(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, list[dict[int | str, float]]]:
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_a_model_of_no_op_of_ai_onnx(save: Save, tmp_path: Path) -> None:
    text = HEAD.replace('"" : 20, ', "") + CASES["of an input, and no other op"][0]
    stored = store_onnx(save(parser.parse_model(text)), tmp_path / "target")
    assert [spec.name for spec in stored.outputs] == ["y"]


def test_the_words_name_the_columns_and_not_a_thousand(save: Save, tmp_path: Path) -> None:
    path = save(parser.parse_model(HEAD + CASES["integers"][0]))
    stored = store_onnx(path, tmp_path / "target")
    (words,) = table_words(stored.outputs, stored.classes)
    assert words == (
        "y: the table of probabilities [batch, 3] in place of ZipMap's maps; its columns are the "
        "classes 7, -1, 3"
    )
    (words,) = table_words(stored.outputs, {"y": tuple(map(str, range(1000)))})
    assert words.endswith("8, 9, ... (1000 of them)")


USED = {
    "in the graph": f"{{ y = {INTEGERS} (x)  n = SequenceLength (y) }}",
    "in a branch": f"""{{ y = {INTEGERS} (x)  c = Constant <value_int = 1> ()
        d = Cast <to = 9> (c)
        n = If <then_branch = t () => (int64 a) {{ a = SequenceLength (y) }},
                else_branch = e () => (int64 b) {{ b = Identity (c) }}> (d) }}""",
    "without classes": f"{{ y = {ZIPMAP} (x)  n = Constant <value_int = 1> () }}",
}


@pytest.mark.parametrize("body", USED.values(), ids=USED.keys())
def test_maps_that_are_used_are_refused_with_the_way_on(body: str, save: Save) -> None:
    model = parser.parse_model(f"{HEAD} (float[?, 3] x) => ({MAPS} y, int64 n) {body}")
    with pytest.raises(UnsupportedGraphError, match="not an output alone.*zipmap=False"):
        store_onnx(save(model), Path("unused"))


def test_maps_that_are_no_output_are_refused(save: Save) -> None:
    body = f"{{ m = {INTEGERS} (x)  y = Identity (m) }}"
    model = onnx.parser.parse_model(f"{HEAD} (float[?, 3] x) => ({MAPS} y) {body}")
    with pytest.raises(UnsupportedGraphError, match="not an output alone.*zipmap=False"):
        store_onnx(save(model), Path("unused"))
