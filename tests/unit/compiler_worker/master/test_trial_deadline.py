"""Runs that show which dimensions are equal have a deadline, and show the same as without one."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.master.stored import store_onnx

# ONNX Runtime looks at its flag to end a run between nodes, of which this body has none.
ENDLESS = """
    turns = Constant <value_int = 4611686018427387904> ()
    goes_on = Constant <value = bool {1}> ()
    y = Loop (turns, goes_on, x) <body = turn (int64 i, bool on, float[n, 4] a)
        => (bool on, float[n, 4] a) { }>
"""


def saved(folder: Path, interface: str, body: str) -> Path:
    text = f'<ir_version: 10, opset_import: ["" : 20]> g {interface} {{ {body} }}'
    path = folder / "model.onnx"
    onnx.save(parser.parse_model(text), path)
    return path


def test_a_loop_that_does_not_end_is_an_error_that_names_the_deadline(tmp_path: Path) -> None:
    path = saved(tmp_path, "(float[n, 4] x) => (float[unk__1, 4] y)", ENDLESS)
    command = [sys.executable, "-m", "services.cli.main", "models", "add", "endless", str(path)]
    own = {"SMELT_HOME": str(tmp_path / "home"), "SMELT_CHECK_TIME_LIMIT_S": "3"}
    added = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=120, check=False
    )
    assert added.returncode == 1
    words = " ".join(added.stderr.split())
    assert f"{path}: cannot be run in ONNX Runtime" in words
    assert "no result within 3 s" in words
    assert "raise SMELT_CHECK_TIME_LIMIT_S" in words


def test_with_a_deadline_dimensions_get_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = "(float[s0, s1, s2] a, float[s3, s4, s5] b) => (float[unk__1, unk__2, unk__3] y)"
    body = "t = Transpose <perm = [0, 2, 1]> (b) y = MatMul (a, t)"
    path = saved(tmp_path, interface, body)
    found = []
    for limit_s in ("300", "0"):
        monkeypatch.setenv("SMELT_CHECK_TIME_LIMIT_S", limit_s)
        master = store_onnx(path, tmp_path / limit_s)
        found.append((master.inputs, master.outputs, master.named_dims))
    assert found[0] == found[1]
    assert found[0][1][0].shape == ("batch", "a_dim1", "b_dim1")


def test_what_needs_no_run_waits_for_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None starts within a millisecond."""
    monkeypatch.setenv("SMELT_CHECK_TIME_LIMIT_S", "0.001")
    path = saved(tmp_path, "(float[s0, s1] x) => (float[s0, s1] y)", "y = Relu (x)")
    assert store_onnx(path, tmp_path / "master").outputs[0].shape == ("batch", "x_dim1")
