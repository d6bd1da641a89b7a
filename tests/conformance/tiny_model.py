"""A transformer block of a few kilobytes, made in code, with everything that is hard to serve.

Dynamic batch and sequence, integer ids, a padding mask, and two outputs of different rank.
B = batch, S = sequence, H = width.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import BlobRef, MasterRecord

VOCABULARY = 40
WIDTH = 16
OPSET = 20

_GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
tiny (int64[batch, sequence] ids, int64[batch, sequence] mask)
  => (float[batch, sequence, 16] hidden, float[batch, 16] pooled)
{
  embedded = Gather (embedding, ids)
  normed = LayerNormalization <axis = -1> (embedded, norm_scale, norm_bias)
  q = MatMul (normed, wq)
  k = MatMul (normed, wk)
  v = MatMul (normed, wv)
  kt = Transpose <perm = [0, 2, 1]> (k)
  qk = MatMul (q, kt)
  scores = Div (qk, root)
  mask_f = Cast <to = 1> (mask)
  closed = Sub (one, mask_f)
  bias = Mul (closed, lowest)
  bias_row = Unsqueeze (bias, axis1)
  masked = Add (scores, bias_row)
  weights = Softmax <axis = -1> (masked)
  attended = MatMul (weights, v)
  summed = Add (embedded, attended)
  up = MatMul (summed, w1)
  up_biased = Add (up, b1)
  act = Gelu (up_biased)
  hidden = MatMul (act, w2)
  mask_col = Unsqueeze (mask_f, axis2)
  kept = Mul (hidden, mask_col)
  total = ReduceSum <keepdims = 0> (kept, axis1)
  count = ReduceSum <keepdims = 0> (mask_col, axis1)
  pooled = Div (total, count)
}
"""


def tiny_model(seed: int = 7) -> onnx.ModelProto:
    """The model with weights from a seed."""
    model: onnx.ModelProto = parser.parse_model(_GRAPH)
    rng = np.random.default_rng(seed)
    floats = {
        "embedding": rng.standard_normal((VOCABULARY, WIDTH)),
        "norm_scale": rng.uniform(0.5, 1.5, WIDTH),
        "norm_bias": rng.standard_normal(WIDTH) * 0.1,
        "w1": rng.standard_normal((WIDTH, 2 * WIDTH)) / 4,
        "b1": rng.standard_normal(2 * WIDTH) * 0.1,
        "w2": rng.standard_normal((2 * WIDTH, WIDTH)) / 6,
        "root": np.array(4.0),
        "one": np.array(1.0),
        "lowest": np.array(-1e4),
    }
    floats |= {name: rng.standard_normal((WIDTH, WIDTH)) / 4 for name in ("wq", "wk", "wv")}
    arrays = {name: value.astype(np.float32) for name, value in floats.items()}
    arrays |= {"axis1": np.array([1]), "axis2": np.array([2])}
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays.items()]
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model, full_check=True)
    return model


def save_master(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a model as masters are kept: `model.onnx` with its weights in `weights.bin`."""
    path = folder / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return path


def master_record(digest: str = "a" * 64) -> MasterRecord:
    """The record of the tiny model."""
    tokens: tuple[int | str, ...] = ("batch", "sequence")
    return MasterRecord(
        digest=digest,
        files={"model.onnx": BlobRef(sha256="b" * 64, num_bytes=1)},
        inputs=(
            TensorSpec(name="ids", datatype="INT64", shape=tokens),
            TensorSpec(name="mask", datatype="INT64", shape=tokens),
        ),
        outputs=(
            TensorSpec(name="hidden", datatype="FP32", shape=(*tokens, WIDTH)),
            TensorSpec(name="pooled", datatype="FP32", shape=("batch", WIDTH)),
        ),
        opset=OPSET,
        num_parameters=1,
    )


def draw_inputs(batch: int, sequence: int, seed: int = 0) -> dict[str, Array]:
    """Random ids and a ragged mask with at least one valid position per row; none of 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, max(sequence, 1) + 1, batch)
    mask = np.arange(sequence)[None, :] < lengths[:, None]
    return {
        "ids": rng.integers(0, VOCABULARY, (batch, sequence)),
        "mask": mask.astype(np.int64),
    }


def reference(model: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    """All outputs by ONNX's own evaluator, which shares no code with any engine."""
    from onnx.reference import ReferenceEvaluator

    names = [entry.name for entry in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))
