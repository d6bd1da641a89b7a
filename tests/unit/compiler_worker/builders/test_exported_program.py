"""The file that crosses from the compiler to serving."""

from pathlib import Path

import pytest
import torch

from compiler_worker.builders.exported_program import export_master
from services.contracts.errors import UnsupportedGraphError
from services.contracts.recipe import Recipe
from services.engines.programs import program_on, ranges_of
from tests.conformance.tiny_model import master_record
from tests.conformance.workshop import BUCKETS


def test_the_program_holds_for_the_recipes_buckets(master_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "program.pt2"
    export_master(master_path, Recipe(buckets=BUCKETS), target)
    program = program_on(target, "cpu")
    ranges = ranges_of(program, master_record().inputs)
    assert {name: (r.min, r.max) for name, r in ranges.items()} == {
        "batch": (1, 8),
        "sequence": (0, 32),
    }
    assert all(tensor.dtype == torch.float32 for tensor in program.parameters())


def test_a_failed_export_leaves_no_file(tmp_path: Path) -> None:
    import onnx
    from onnx import parser

    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { y = Nope (x) }'
    )
    path, target = tmp_path / "m.onnx", tmp_path / "out" / "program.pt2"
    target.parent.mkdir()
    onnx.save(parser.parse_model(text), path)
    with pytest.raises(UnsupportedGraphError, match="Nope"):
        export_master(path, Recipe(), target)
    assert list(target.parent.iterdir()) == []
