"""Ops that ONNX's own reference implementation lacks or fails at, by their definition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from compiler_worker.references.reference_suppression import NonMaxSuppression
from compiler_worker.references.reference_trees import (
    TreeEnsembleClassifier,
    TreeEnsembleRegressor,
)
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensors import Array


class CategoryMapper(OpRun):
    """Strings to the integers beside them, or the other way round; others to the default."""

    op_domain = "ai.onnx.ml"

    # Attributes are given by name, and left out where the node has none.
    def _run(
        self,
        x: Array,
        *,
        cats_int64s: Sequence[int] | None = None,
        cats_strings: Sequence[str] | None = None,
        default_int64: int | None = None,
        default_string: str | None = None,
    ) -> tuple[Array]:
        """Map every element."""
        numbers = list(cats_int64s or ())
        words = list(cats_strings or ())
        if x.dtype.kind in "iu":
            names: dict[Any, Any] = dict(zip(numbers, words, strict=True))
            unused = "_Unused" if default_string is None else default_string
            return (_mapped(x, names, unused, STRING_DTYPE),)
        places: dict[Any, Any] = dict(zip(words, numbers, strict=True))
        default = -1 if default_int64 is None else default_int64
        return (_mapped(x, places, default, np.dtype(np.int64)),)


def _mapped(x: Array, table: dict[Any, Any], default: Any, dtype: "np.dtype[Any]") -> Array:
    found = [table.get(each, default) for each in x.ravel().tolist()]
    mapped: Array = np.array(found, dtype=dtype).reshape(x.shape)
    return mapped


class LRN(OpRun):
    """Sums squares around every channel; onnx 1.23 does so around as many as the batch has rows."""

    def _run(
        self,
        x: Array,
        *,
        size: int,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
    ) -> tuple[Array]:
        before = (size - 1) // 2
        sides = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
        squares = np.lib.stride_tricks.sliding_window_view(np.pad(x**2, sides), size, axis=1)
        normal: Array = x / (bias + alpha / size * squares.sum(axis=-1)) ** beta
        return (normal.astype(x.dtype),)


class LpNormalization(OpRun):
    """Divides by the norm; onnx 1.23 takes that of p = 1 of the values with their signs."""

    def _run(self, x: Array, *, axis: int = -1, p: int = 2) -> tuple[Array]:
        norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
        normal: Array = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
        return (normal,)


class QLinearMatMul(OpRun):
    """Rounds, then adds the zero point; onnx 1.23 does so the other way round, and ties differ."""

    def _run(
        self,
        a: Array,
        a_scale: Array,
        a_zero: Array,
        b: Array,
        b_scale: Array,
        b_zero: Array,
        y_scale: Array,
        y_zero: Array,
    ) -> tuple[Array]:
        product = (a.astype(np.int32) - a_zero) @ (b.astype(np.int32) - b_zero)
        rounded = np.rint(product.astype(np.float32) * (a_scale * b_scale / y_scale)) + y_zero
        limits = np.iinfo(y_zero.dtype)
        return (np.clip(rounded, limits.min, limits.max).astype(y_zero.dtype),)


class Scaler(OpRun):
    """Gives floats of integers too, of which onnx 1.23 makes integers again."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: Array, *, offset: Sequence[float], scale: Sequence[float]) -> tuple[Array]:
        scaled: Array = (x - np.asarray(offset)) * np.asarray(scale)
        return (scaled.astype(x.dtype if x.dtype.kind == "f" else np.float32),)


OPS = (
    CategoryMapper,
    LRN,
    LpNormalization,
    NonMaxSuppression,
    QLinearMatMul,
    Scaler,
    TreeEnsembleClassifier,
    TreeEnsembleRegressor,
)
