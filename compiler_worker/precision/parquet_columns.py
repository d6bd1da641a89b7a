"""Columns of a parquet file as arrays, one row per sample."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array


def read_parquet(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """The columns of a file by name: numbers, or equally long, possibly nested, lists of them.

    Raises:
        ValueError: pyarrow is missing, the file is no parquet, or a column is no array.
    """
    try:
        pyarrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(
            f"reading parquet needs pyarrow ({error}): pip install pyarrow, or write the columns "
            "with numpy.savez and name the .npz file"
        ) from error
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"not a parquet file: {error}") from error
    rows = {spec.name: spec.wire_shape[1:] for spec in inputs}
    return {
        name: _array(pyarrow, name, table.column(name), rows.get(name, ()))
        for name in table.column_names
    }


def _array(pyarrow: Any, name: str, column: Any, row: tuple[int, ...]) -> Array:
    values = column.combine_chunks()
    lengths = []
    while pyarrow.types.is_nested(values.type):
        values, length = _flattened(name, values)
        lengths.append(length)
    if values.null_count:
        raise ValueError(f"column '{name}' has empty cells")
    flat = np.asarray(values.to_numpy(zero_copy_only=False))
    # Most writers have no nested lists: a row is then flat, in C order.
    if len(lengths) == 1 and len(row) > 1 and row.count(-1) <= 1:
        step = abs(int(np.prod(row)))
        lengths = [dim if dim > 0 else lengths[0] // step for dim in row]
    shape = (len(column), *lengths)
    if flat.size != np.prod(shape):
        raise ValueError(
            f"column '{name}' has {flat.size} numbers in {len(column)} rows, {list(shape)} wanted"
        )
    return flat.reshape(shape)


def _flattened(name: str, values: Any) -> tuple[Any, int]:
    """The lists' elements one after another, and how many each list has."""
    lengths = set(values.value_lengths().to_pylist())
    if len(lengths) != 1 or None in lengths:
        found = ", ".join(sorted(map(str, lengths))[:4])
        raise ValueError(f"lists of lengths {found} in column '{name}': pad all rows to one length")
    return values.flatten(), lengths.pop()
