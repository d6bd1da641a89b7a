"""The classification extension: the largest values of an output, as text."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.byte_strings import BYTES, STRING_DTYPE, bytes_from_strings
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.pb import open_inference_v2_pb2 as pb

PARAMETER: Final = "classification"
DATATYPE: Final = BYTES
# Of one output: a tenth of a second.
MAX_SORTED: Final = 1_000_000
MAX_TEXTS: Final = 50_000


def num_classes_from_parameters(
    parameters: Mapping[str, pb.InferParameter], spec: TensorSpec, model: str
) -> int:
    """How many classes of an output are wanted; 0 for the output itself.

    Args:
        parameters: of the requested output.
        spec: of that output.
        model: for the message.

    Raises:
        InvalidRequestError: it is no number above 0, or the output has no numbers.
    """
    if PARAMETER not in parameters:
        return 0
    where = f"parameter '{PARAMETER}' of output '{spec.name}' for model '{model}'"
    parameter = parameters[PARAMETER]
    kind = parameter.WhichOneof("parameter_choice")
    if kind != "int64_param" or parameter.int64_param < 1:
        raise InvalidRequestError(
            f"{where}: expected int64_param >= 1, got {kind} {parameter.int64_param}"
        )
    if spec.datatype in ("BOOL", DATATYPE):
        raise InvalidRequestError(f"{where}: expected an output of numbers, got {spec.datatype}")
    return parameter.int64_param


def classified(values: Array, num_classes: int, *, has_rows: bool) -> tuple[tuple[int, ...], bytes]:
    """Shape and raw bytes of the largest values, each as `value:index`, largest first.

    Among equal values the first comes first, and NaN comes last.

    Args:
        values: one output, of numbers.
        num_classes: at least 1; fewer are returned where there are fewer values.
        has_rows: the first dimension is the batch: each row has its own, and indices count within a
            row as if it were flat.

    Returns:
        Shape [rows, classes] or [classes], and BYTES tensor contents.

    Raises:
        InvalidRequestError: more than can be sorted and written while all other requests wait.
    """
    num_rows = values.shape[0] if has_rows else 1
    rows = values.reshape(num_rows, -1) if values.size else values.reshape(num_rows, 0)
    count = min(num_classes, rows.shape[1])
    if values.size > MAX_SORTED or num_rows * count > MAX_TEXTS:
        raise InvalidRequestError(
            f"parameter '{PARAMETER}': {num_rows * count} classes of {values.size} values wanted, "
            f"at most {MAX_TEXTS} of {MAX_SORTED} are given; ask for the output itself"
        )
    order = _largest(rows, count)
    found = np.take_along_axis(rows, order, axis=1)
    texts = [
        f"{value}:{at}" for value, at in zip(_written(found), order.ravel().tolist(), strict=True)
    ]
    raw = bytes_from_strings(np.array(texts, dtype=STRING_DTYPE))
    return ((num_rows, count) if has_rows else (count,)), raw


def _largest(rows: Array, count: int) -> Array:
    """Where the largest values of each row are."""
    if not _are_integers(rows):
        rows = np.where(np.isnan(rows), -np.inf, rows).astype(np.float64, copy=False)
    # Sorted backwards and turned around, so that equal values keep their order.
    backwards = np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1]
    largest: Array = rows.shape[1] - 1 - backwards[:, :count]
    return largest


def _written(values: Array) -> list[str]:
    if _are_integers(values):
        return [str(value) for value in values.ravel().tolist()]
    return [f"{value:f}" for value in values.astype(np.float64).ravel().tolist()]


def _are_integers(values: Array) -> bool:
    return values.dtype.kind in "iu"
