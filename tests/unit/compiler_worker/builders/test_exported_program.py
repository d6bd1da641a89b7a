"""The file that crosses from the compiler to serving."""

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
import torch

from compiler_worker.builders.exported_program import export_program
from services.contracts.errors import BuildError, UnsupportedGraphError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import default_buckets
from services.contracts.model.recipe import Bucket, DimRange
from services.engines.torch_runtime.programs import program_on, ranges_of
from tests.conformance.tiny_model import master_record
from tests.conformance.workshop import BUCKETS


def test_the_program_holds_for_the_buckets(master_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "program.pt2"
    export_program(master_path, BUCKETS, target)
    program = program_on(target, "cpu")
    ranges = ranges_of(program, master_record().inputs)
    assert {name: (r.min, r.max) for name, r in ranges.items()} == {
        "batch": (1, 8),
        "sequence": (0, 32),
    }
    assert all(tensor.dtype == torch.float32 for tensor in program.parameters())


def test_a_graph_that_holds_for_fewer_sizes_is_not_exported(tmp_path: Path) -> None:
    """A table of 77 positions: compiled code would not see that a request is longer."""
    text = """
        <ir_version: 10, opset_import: ["" : 20]>
        g (float[batch, sequence] x) => (float[batch, sequence] y)
        <float[77] table, int64[1] zero = {0}>
        {
            length = Shape <start = 1, end = 2> (x)
            positions = Slice (table, zero, length, zero)
            y = Add (x, positions)
        }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(77, np.float32), "table"))
    master_path, target = tmp_path / "model.onnx", tmp_path / "program.pt2"
    onnx.save(model, master_path)
    specs = (TensorSpec(name="x", datatype="FP32", shape=("batch", "sequence")),)
    (bucket,) = default_buckets(specs, "batch")
    with pytest.raises(BuildError, match="Constraints violated"):
        export_program(master_path, (bucket,), target)
    shorter = Bucket(dims=bucket.dims | {"sequence": DimRange(min=1, opt=64, max=77)})
    export_program(master_path, (shorter,), target)
    ranges = ranges_of(program_on(target, "cpu"), specs)
    assert {name: (r.min, r.max) for name, r in ranges.items()} == {
        "batch": (1, 8),
        "sequence": (1, 77),
    }


def test_a_failed_export_leaves_no_file(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { y = Nope (x) }'
    )
    path, target = tmp_path / "m.onnx", tmp_path / "out" / "program.pt2"
    target.parent.mkdir()
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(UnsupportedGraphError, match="Nope"):
        export_program(path, (), target)
    assert list(target.parent.iterdir()) == []
