"""Tiny real ONNX models, made in code, and the recipes that go with them.

B = batch, F = features, T = tokens.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from services.contracts.kserve.tensors import Array

FEATURES = 8
OUTPUTS = 4
# Of models that multiply by a factor, where nothing else is asked for.
NUM_FEATURES = 6
# Sums of eight products, whatever order a kernel adds them in.
TOLERANCE = 1e-5

_LINEAR = """
<ir_version: 10, opset_import: ["" : 20]>
linear (float[batch, 8] x) => (float[batch, 4] y)
{
  product = MatMul (x, weight)
  y = Add (product, bias)
}
"""
_SCALED = """
<ir_version: 10, opset_import: ["" : 20]>
scaled (float[batch, features] x) => (float[batch, features] y)
{
  y = Mul (x, factor)
}
"""
_NOOP = """
<ir_version: 10, opset_import: ["" : 20]>
noop (int64[batch, tokens] x) => (int64[batch, tokens] y)
{
  y = Identity (x)
}
"""
_TEXTS = """
<ir_version: 10, opset_import: ["" : 20]>
texts (int64[batch, sequence] ids, int64[batch, sequence] mask) => (float[batch, 8] y)
<int64[1] last = {2}, int64[1] positions = {1}>
{
  word = Gather (table, ids)
  valid = Cast <to = 1> (mask)
  each = Unsqueeze (valid, last)
  kept = Mul (word, each)
  y = ReduceSum <keepdims = 0> (kept, positions)
}
"""


def write_linear(path: Path, seed: int = 1) -> Path:
    """x_BF @ weight + bias, its weights from a seed."""
    rng = np.random.default_rng(seed)
    return _write(
        path,
        _LINEAR,
        weight=rng.standard_normal((FEATURES, OUTPUTS)).astype(np.float32),
        bias=rng.standard_normal(OUTPUTS).astype(np.float32),
    )


def write_scaled(path: Path, factor: float) -> Path:
    """x_BF * factor."""
    return _write(path, _SCALED, factor=np.array(factor, np.float32))


def write_noop(path: Path) -> Path:
    """x_BT as it came."""
    return _write(path, _NOOP)


def write_texts(path: Path, table: Array) -> Path:
    """The sum of the rows of a table, float32 [words, 8], that are not masked."""
    return _write(path, _TEXTS, table=table)


def write_recipe(
    path: Path,
    num_replicas: int,
    max_batch: int = 32,
    max_queue: int = 512,
    precisions: str = "fp32",
    **dims: int,
) -> Path:
    """One bucket: a batch of 1 to `max_batch`, each other dimension up to its value."""
    ranges = {"batch": max_batch} | dims
    lines = [f"      {name}: {{min: 1, opt: {top}, max: {top}}}" for name, top in ranges.items()]
    path.write_text(
        f"num_replicas: {num_replicas}\n"
        f"precisions: [{precisions}]\n"
        f"batching: {{max_queue: {max_queue}}}\n"
        "buckets:\n  - dims:\n" + "\n".join(lines) + "\n"
    )
    return path


def answer_of(path: Path, x: Array) -> Array:
    """What ONNX Runtime itself computes from the file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    answer: Array = session.run(["y"], {"x": x})[0]
    return answer


def _write(path: Path, graph: str, **weights: Array) -> Path:
    model = parser.parse_model(graph)
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
