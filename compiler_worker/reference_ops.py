"""Ops that ONNX defines and its own reference implementation lacks, by their definition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from services.contracts.byte_strings import STRING_DTYPE
from services.contracts.tensors import Array


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
        numbers, words = list(cats_int64s or ()), list(cats_strings or ())
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


OPS = (CategoryMapper,)
