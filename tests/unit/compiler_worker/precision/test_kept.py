"""Calibrated graphs on disk: made once for what they depend on, and again when that is gone."""

import logging
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from compiler_worker.precision.kept import kept_graph

IDENTITY = {"master": "m", "calibration": "c", "precision": "int8"}
TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[N] x) => (float[N] y) { y = Relu (x) }
"""


class Maker:
    """Makes the graph and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> onnx.ModelProto:
        self.count += 1
        model: onnx.ModelProto = parser.parse_model(TEXT)
        return model


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_it_is_made_once_for_one_identity(tmp_path: Path, maker: Maker) -> None:
    folder = tmp_path / "typed"
    found = [kept_graph(folder, IDENTITY, maker) for _ in range(3)]
    assert maker.count == 1
    assert all(model == found[0] for model in found)
    kept_graph(folder, IDENTITY | {"calibration": "other"}, maker)
    assert maker.count == 2
    assert [path.name for path in tmp_path.iterdir()] == ["typed"]


def _damage(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-3])


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [_damage, _remove, _empty])
def test_what_is_damaged_or_gone_is_made_again(
    tmp_path: Path, maker: Maker, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "typed"
    first = kept_graph(folder, IDENTITY, maker)
    spoil(folder)
    assert kept_graph(folder, IDENTITY, maker) == kept_graph(folder, IDENTITY, maker) == first
    assert maker.count == 2


def test_a_folder_that_cannot_be_written_costs_time_only(
    tmp_path: Path, maker: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert kept_graph(tmp_path / "file" / "typed", IDENTITY, maker).graph.node
    assert maker.count == 2
    assert "is not kept" in caplog.text
