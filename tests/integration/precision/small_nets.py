"""A small convolutional net and a small transformer, wide enough to be worth quantising."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from services.contracts.kserve.tensors import Array

VOCABULARY = 64
_CHANNELS, _WIDTH, _HEADS = 32, 64, 4

_CONV = """
<ir_version: 10, opset_import: ["" : 20]>
conv (float[batch, 3, 16, 16] image) => (float[batch, 10] logits)
{
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, w1, b1)
  a_relu = Relu (a)
  b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a_relu, w2, b2)
  joined = Add (b, a_relu)
  b_relu = Relu (joined)
  pooled = GlobalAveragePool (b_relu)
  flat = Flatten (pooled)
  logits = Gemm <transB = 1> (flat, w3, b3)
}
"""
_ATTENTION = """
<ir_version: 10, opset_import: ["" : 23]>
attention (int64[batch, sequence] ids, int64[batch, sequence] mask)
  => (float[batch, sequence, 64] hidden)
{
  embedded = Gather (embedding, ids)
  normed = LayerNormalization <axis = -1> (embedded, norm_scale, norm_bias)
  q = MatMul (normed, wq)
  k = MatMul (normed, wk)
  v = MatMul (normed, wv)
  allowed = Cast <to = 9> (mask)
  allowed_row = Unsqueeze (allowed, axes)
  count = Shape <start = 1, end = 2> (ids)
  square = Concat <axis = 0> (ones, count, count)
  allowed_all = Expand (allowed_row, square)
  attended = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v, allowed_all)
  out = MatMul (attended, wo)
  summed = Add (embedded, out)
  normed_2 = LayerNormalization <axis = -1> (summed, norm_scale, norm_bias)
  up = MatMul (normed_2, w1)
  act = Gelu (up)
  down = MatMul (act, w2)
  hidden = Add (summed, down)
}
"""


def conv_net() -> onnx.ModelProto:
    """Two convolutions with a residual, a pooling and a classifier."""
    rng = np.random.default_rng(1)
    return _with_weights(
        _CONV,
        {
            "w1": rng.standard_normal((_CHANNELS, 3, 3, 3)) / 5,
            "b1": rng.standard_normal(_CHANNELS) / 10,
            "w2": rng.standard_normal((_CHANNELS, _CHANNELS, 3, 3)) / 17,
            "b2": rng.standard_normal(_CHANNELS) / 10,
            "w3": rng.standard_normal((10, _CHANNELS)) / 3,
            "b3": rng.standard_normal(10),
        },
    )


def attention_net() -> onnx.ModelProto:
    """One block of a transformer with an embedding and a padding mask."""
    rng = np.random.default_rng(2)
    weights = {name: rng.standard_normal((_WIDTH, _WIDTH)) / 8 for name in ("wq", "wk", "wv", "wo")}
    weights |= {
        "embedding": rng.standard_normal((VOCABULARY, _WIDTH)),
        "norm_scale": rng.uniform(0.5, 1.5, _WIDTH),
        "norm_bias": rng.standard_normal(_WIDTH) / 10,
        "w1": rng.standard_normal((_WIDTH, 2 * _WIDTH)) / 8,
        "w2": rng.standard_normal((2 * _WIDTH, _WIDTH)) / 11,
    }
    model = _with_weights(_ATTENTION, weights)
    integers = {"axes": np.array([1, 2]), "ones": np.array([1, 1])}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in integers.items()
    )
    return model


def conv_inputs(num: int, seed: int = 3) -> dict[str, Array]:
    """Normalised images of different brightness, light and dark patches under noise."""
    rng = np.random.default_rng(seed)
    place = np.arange(16) * 3 // 16
    patches = rng.standard_normal((num, 3, 3, 3))[:, :, place][..., place]
    levels = rng.standard_normal((num, 3, 1, 1))
    images = (levels + patches + rng.standard_normal(patches.shape)) / 3**0.5
    return {"image": images.astype(np.float32)}


def attention_inputs(num: int, seed: int = 3, length: int = 12) -> dict[str, Array]:
    """Token rows of different length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, (num, 1))
    return {
        "ids": rng.integers(0, VOCABULARY, (num, length)),
        "mask": (np.arange(length) < lengths).astype(np.int64),
    }


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Check a model and write it as one file."""
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def _with_weights(text: str, weights: dict[str, Array]) -> onnx.ModelProto:
    model: onnx.ModelProto = parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return model
