"""Which samples a version may learn from; another master's or tokenizer's mean something else.

A row's arrays are [...], without the batch dimension.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, InputRecipe
from services.contracts.model.value_limits import limits_of
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import Windows
from services.contracts.text.words import counted
from services.contracts.traffic.drift import Served, dims_of, lengths_of, masks_of, valid_part
from services.contracts.traffic.sampled_rows import SampledRow

Row = Mapping[str, Array]


def windows_for(registry: Registry, version: ModelVersion) -> tuple[Windows, str]:
    """Windows of the same master and tokenizer that can be opened; in words what is left out."""
    known, _ = registry.readable_versions(version.name)
    taken = (version.master.digest, version.tokenizer)
    alike = {each.version for each in known if (each.master.digest, each.tokenizer) == taken}
    windows = registry.sample_windows(version.name)
    own = {key: each for key, each in windows.items() if each.version in alike}
    key_ids = ("", registry.cipher.key_id if registry.cipher else "")
    opened = {key: each for key, each in own.items() if each.key_id in key_ids}
    words = ""
    if foreign := len(windows) - len(own):
        words += f"; left out: {counted(foreign, 'window')} of another master or tokenizer"
    if sealed := len(own) - len(opened):
        lost = counted(sealed, "window")
        words += f"; left out: {lost} sealed with another key than SMELT_SAMPLE_KEY names"
    return opened, words


def fitting_rows(sampled: Iterable[SampledRow], version: ModelVersion) -> list[Row]:
    """Whole rows without padding, in the types of the version's inputs, that calibrate it.

    They are finite, and it would serve them.
    """
    limits = limits_of(version.master, version.recipe)
    rows = [row for each in sampled if (row := _typed(each.arrays, version)) is not None]
    return [
        row
        for row in rows
        if (not version.buckets or bucket_of(row, version))
        and all(each.first_outside(row[name]) is None for name, each in limits.items())
        # The compiler refuses a set with another.
        and is_finite(row)
    ]


def is_finite(row: Row) -> bool:
    """Whether no value is NaN or an infinity, which any client may send."""
    floats = [each.astype(np.float32) for each in row.values() if each.dtype.kind in "fV"]
    return all(np.isfinite(each).all() for each in floats)


def bucket_of(row: Row, version: Served) -> Bucket | None:
    """The first bucket that takes a row's lengths, smaller ones than its own where a mask pads."""
    sizes = lengths_of(row, version)
    is_padded = bool(masks_of(version.recipe))
    for bucket in version.buckets:
        spans = [(sizes[dim], span) for dim, span in bucket.dims.items() if dim in sizes]
        if all((is_padded or span.min <= size) and size <= span.max for size, span in spans):
            return bucket
    return None


def stacked_rows(rows: Sequence[Row], version: Served) -> dict[str, Array]:
    """[rows, ...] for each input: padded to the largest row, and to the least that buckets take."""
    arrays = {}
    for spec in version.master.inputs:
        each = [row[spec.name] for row in rows]
        dims = map(str, dims_of(spec, rows[0]) or ())
        spans = [[b.dims[dim] for b in version.buckets if dim in b.dims] for dim in dims]
        least = [min((each.min for each in span), default=0) for span in spans]
        sizes = np.max([least, *(array.shape for array in each)], axis=0).astype(int).tolist()
        pad = version.recipe.inputs.get(spec.name, InputRecipe()).pad
        arrays[spec.name] = np.full([len(rows), *sizes], pad, each[0].dtype)
        for number, array in enumerate(each):
            place = (slice(number, number + 1), *map(slice, array.shape))
            arrays[spec.name][place] = array
    return arrays


def _typed(arrays: Row, version: ModelVersion) -> Row | None:
    """A row in the types of the version's inputs; None where it lacks some, or is empty."""
    batch_dim = version.recipe.batching.batch_dim
    row = {}
    for spec in version.master.inputs:
        array = arrays.get(spec.name)
        rank = len(spec.shape) - (spec.shape[:1] == (batch_dim,))
        if array is None or array.ndim != rank or spec.datatype == BYTES:
            return None
        row[spec.name] = array.astype(NUMPY_FROM_DATATYPE[spec.datatype])
    valid = valid_part(row, version)
    return valid if all(array.size for array in valid.values()) else None
