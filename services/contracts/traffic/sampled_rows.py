"""Rows of requests as one file (.npz): each with a shape of its own.

Of input NAME there are `values NAME`, all rows one after the other, and `shapes NAME`: int64
[N rows, R rank]. Of one of strings there is `strings NAME` in place of the values: uint8, each
string after its length. Of one that is hashed there is `hashes NAME`: one text for each row.
"""

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from services.contracts.kserve.byte_strings import (
    STRING_DTYPE,
    bytes_from_strings,
    strings_from_array,
    strings_from_bytes,
)
from services.contracts.kserve.tensors import Array


class SampledRow(NamedTuple):
    """One row of one request.

    Attributes:
        bucket: label of the one that it belongs to.
        arrays: by input: along the batch dimension one element, of other inputs all.
        hashes: by input that is hashed.
        weight: rows of the same traffic that it stands for.
    """

    bucket: str
    arrays: Mapping[str, Array]
    hashes: Mapping[str, str] = {}
    weight: float = 1.0


def bytes_from_rows(rows: Sequence[SampledRow]) -> bytes:
    """The file; equal rows give equal bytes."""
    named: dict[str, Array] = {"bucket": np.array([row.bucket for row in rows])}
    for name in sorted(rows[0].arrays):
        arrays = [_plain(row.arrays[name]) for row in rows]
        values = np.concatenate([array.reshape(-1) for array in arrays])
        if values.dtype == STRING_DTYPE:
            named[f"strings {name}"] = np.frombuffer(bytes_from_strings(values), np.uint8)
        else:
            named[f"values {name}"] = values
        shapes = np.array([array.shape for array in arrays], np.int64)
        named[f"shapes {name}"] = shapes.reshape(len(rows), arrays[0].ndim)
    for name in sorted(rows[0].hashes):
        named[f"hashes {name}"] = np.array([row.hashes[name] for row in rows])
    return bytes_from_arrays(named)


def bytes_from_arrays(named: Mapping[str, Array]) -> bytes:
    """An .npz file; equal arrays give equal bytes.

    Not compressed: what bounds its size bounds the memory that it is read into.
    """
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **named)
    return file.getvalue()


def arrays_from_bytes(data: bytes) -> dict[str, Array]:
    """The arrays of an .npz file by name; raises ValueError for any other bytes."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: strings_from_array(archive[name]) for name in archive.files}


def rows_from_bytes(data: bytes) -> list[SampledRow]:
    """The rows of a file, each with weight 1; raises ValueError for any other bytes."""
    found = arrays_from_bytes(data)
    arrays: list[dict[str, Array]] = [{} for _ in found["bucket"]]
    hashes: list[dict[str, str]] = [{} for _ in found["bucket"]]
    for key, array in found.items():
        what, _, name = key.partition(" ")
        if what == "hashes":
            for row, text in zip(hashes, array.tolist(), strict=True):
                row[name] = text
        elif what in ("values", "strings"):
            shapes = found[f"shapes {name}"]
            ends = np.cumsum(shapes.prod(axis=1))
            is_text = what == "strings"
            values = strings_from_bytes(array.data, ends[-1:].tolist()) if is_text else array
            parts = np.split(values, ends[:-1])
            for row_arrays, part, shape in zip(arrays, parts, shapes, strict=True):
                row_arrays[name] = part.reshape(shape)
    buckets = found["bucket"].tolist()
    return [SampledRow(*each) for each in zip(buckets, arrays, hashes, strict=True)]


def _plain(array: Array) -> Array:
    """As numpy's files keep it: they know no bfloat16 (kind "V")."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
