"""Ops of ai.onnx.ml on plain tensors."""

from __future__ import annotations

import torch

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import product
from compiler_worker.onnx_to_fx.values import Tensor


def _array_feature_extractor(op: Op) -> Tensor:
    """Columns of x [*, features] by number; a vector becomes a matrix of one row."""
    x = op.tensor(0)
    index = op.tensor(1)
    flat = op.call(torch.reshape, index, [-1])
    node = op.call(torch.index_select, x, x.rank - 1, flat)
    count = product(op.dims(1))
    if x.rank == 1:
        return Tensor(op.call(torch.unsqueeze, node, 0), x.dtype, (1, count))
    return Tensor(node, x.dtype, (*x.dims[:-1], count))


def _binarizer(op: Op) -> Tensor:
    """One where an element is above the threshold, else zero."""
    x = op.tensor(0)
    is_above = op.call(torch.gt, x, op.attr_float("threshold"))
    return x.like(op.method("to", is_above, op.graph.dtype(x.dtype)))


converter("ArrayFeatureExtractor", versions=(1,), domain="ai.onnx.ml")(_array_feature_extractor)
converter("Binarizer", versions=(1,), domain="ai.onnx.ml")(_binarizer)
