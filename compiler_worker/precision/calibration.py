"""Calibration sets: real inputs that the scales of quantised activations are taken from.

Read and checked when a model is added, then kept in one form whatever the owner's file was,
so that equal samples give equal bytes, hence one digest and one key.

Legend: an array is [rows, ...]. A row is a sample: of an input whose leading dimension counts
samples it is one element along that, of any other input (its array has one dimension more) it is
the whole input.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from compiler_worker.master.samples import read_arrays, write_samples
from services.contracts.errors import InvalidRecipeError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, NUMPY_FROM_DATATYPE, Array
from services.contracts.model.value_limits import ValueLimits
from services.contracts.text.nearest import nearest

# A scale is the largest value that was seen: fewer samples miss most of what is to come.
MIN_SAMPLES = 16
_KEY = "recipe: calibration.path"


def read_calibration(
    path: Path, inputs: Sequence[TensorSpec], limits: Mapping[str, ValueLimits] | None = None
) -> dict[str, Array]:
    """The arrays of a calibration file by input name, checked against a model's inputs.

    Args:
        path: .npz or .parquet.
        inputs: the model's specs.
        limits: by input name, what a request may hold; None checks no values against it.

    Raises:
        InvalidRecipeError: no such file, not a file of arrays, an input without a column or
            with another datatype or shape, too few samples, values that a request may not
            hold, or numbers that are not finite.
    """
    arrays = _read(path, inputs)
    _check_names(path, arrays, inputs)
    for spec in inputs:
        _check_type(path, spec, arrays[spec.name])
    # After types: what has no rows has no number of them.
    _check_number(path, arrays, inputs)
    for spec in inputs:
        _check_values(path, spec, arrays[spec.name], (limits or {}).get(spec.name))
    return arrays


def write_calibration(arrays: Mapping[str, Array], folder: Path) -> Path:
    """Write a calibration set as it is kept; equal samples give equal bytes."""
    return write_samples({name: arrays[name] for name in sorted(arrays)}, folder)


def feeds(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """One feed for each sample, or for as many as a fixed leading dimension takes."""
    size = _rows_per_feed(arrays, inputs)
    count = len(next(iter(arrays.values()))) // size
    return [
        {
            spec.name: arrays[spec.name][i]
            if _is_whole(arrays[spec.name], spec)
            else arrays[spec.name][i * size : (i + 1) * size]
            for spec in inputs
        }
        for i in range(count)
    ]


def _is_whole(array: Array, spec: TensorSpec) -> bool:
    return array.ndim == len(spec.shape) + 1


def _rows_per_feed(arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> int:
    """The largest fixed leading dimension that counts samples; 1 when it is dynamic."""
    counted = (spec.shape[0] for spec in inputs if not _is_whole(arrays[spec.name], spec))
    return max((dim for dim in counted if isinstance(dim, int)), default=1)


def _read(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    if path.suffix not in (".npz", ".parquet"):
        raise InvalidRecipeError(f"{_KEY} {path}: expected a file .npz or .parquet")
    if not path.is_file():
        raise InvalidRecipeError(
            f"{_KEY} {path.absolute()}: no such file; the path is relative to the recipe's own "
            "folder, or to the current one where a factory brings the recipe"
        )
    try:
        return read_arrays(path) if path.suffix == ".npz" else read_parquet(path, inputs)
    except ValueError as error:
        raise InvalidRecipeError(f"{_KEY} {path}: {error}") from error


def _check_names(path: Path, arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    wanted = [spec.name for spec in inputs]
    for name in wanted:
        if name not in arrays:
            raise InvalidRecipeError(
                f"{_KEY} {path}: no column for input '{name}'{nearest(name, arrays)}; found "
                f"{sorted(arrays)}, one for each of {wanted} wanted"
            )
    for name in arrays:
        if name not in wanted:
            raise InvalidRecipeError(
                f"{_KEY} {path}: column '{name}' is no input of the model{nearest(name, wanted)}; "
                f"expected {wanted} and nothing else"
            )


def _check_type(path: Path, spec: TensorSpec, array: Array) -> None:
    # Objects are strings or lists: no model of strings is calibrated, so both are as wrong.
    known = {} if array.dtype.hasobject else DATATYPE_FROM_NUMPY
    datatype = known.get(array.dtype, str(array.dtype))
    row = spec.wire_shape if _is_whole(array, spec) else spec.wire_shape[1:]
    is_alike = array.ndim == len(row) + 1 and all(
        want in (-1, got) for want, got in zip(row, array.shape[1:], strict=True)
    )
    if datatype != spec.datatype or not is_alike:
        raise InvalidRecipeError(
            f"{_KEY} {path}: column '{spec.name}': {datatype} {list(array.shape)} found, "
            f"{spec.datatype} {['samples', *spec.wire_shape[1:]]} wanted"
        )


def _check_number(path: Path, arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    counts = {name: len(array) for name, array in arrays.items()}
    found = min(counts.values())
    if found != max(counts.values()):
        raise InvalidRecipeError(f"{_KEY} {path}: columns of one length wanted, found {counts}")
    wanted = max(MIN_SAMPLES, _rows_per_feed(arrays, inputs))
    if found < wanted:
        raise InvalidRecipeError(
            f"{_KEY} {path}: {found} samples are too few, at least {wanted} wanted; some "
            "hundred that are like the requests to come give the best scales"
        )


def _check_values(path: Path, spec: TensorSpec, array: Array, limits: ValueLimits | None) -> None:
    what = f"{_KEY} {path}: column '{spec.name}'"
    if NUMPY_FROM_DATATYPE[spec.datatype].kind not in "iub":
        if not np.isfinite(array.astype(np.float32)).all():
            raise InvalidRecipeError(f"{what} holds numbers that are not finite: remove them")
        return
    if not array.size:
        raise InvalidRecipeError(f"{what} is empty: rows {list(array.shape[1:])} calibrate nothing")
    place = limits.first_outside(array) if limits else None
    if limits and place is not None:
        raise InvalidRecipeError(
            f"{what} holds {array[place]} at {list(place)}, values from {limits.span_at(place)}"
            f"{limits.source} are allowed: such a request would be refused"
        )


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
