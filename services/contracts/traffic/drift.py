"""How far requests have moved: the largest distance of two distributions (Kolmogorov-Smirnov).

0 is none, 1 is nothing in common. Noise is what the same rows show when they are parted by
chance, each row on either side, into as many as the two sides have: the largest of some such.

Legend: a row's array is [...] without the batch dimension, a feature float64 [values] of each row.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, InputRole, Recipe

_NUM_PARTINGS = 20
_MAX_ROWS = 1000
_MAX_VALUES = 64  # of each row and input
Features = dict[str, list[Array]]
_Dims = tuple[int | str, ...]


class ServedInputs(NamedTuple):
    """What rows are read by; a ModelVersion has it too."""

    master: MasterRecord
    recipe: Recipe
    buckets: Sequence[Bucket]


Served = ModelVersion | ServedInputs


class Drift(NamedTuple):
    """One distance: of `length DIM` or of `values INPUT`."""

    what: str
    distance: float
    noise: float


def features(rows: Iterable[Mapping[str, Array]], version: ModelVersion) -> Features:
    """What is compared, of each row: sizes of dynamic dimensions, [1], and values of inputs, [n].

    Padding that a mask of one dimension marks counts as neither.

    Args:
        rows: arrays by input, without the batch dimension; inputs may lack.
        version: names the inputs, the masks, and the batch dimension, which is no length.
    """
    found: Features = {}
    for whole in rows:
        row = valid_part(whole, version)
        valid, lengths = _valid(row, version)
        for spec in version.master.inputs:
            dims = dims_of(spec, row)
            if dims is None or (dims in valid and spec.name in masks_of(version.recipe)):
                continue
            values = row[spec.name]
            values = (values[valid[dims]] if dims in valid else values).reshape(-1)
            if values.size and values.dtype.kind in "fiub":
                step = -(-values.size // _MAX_VALUES)
                found.setdefault(f"values {spec.name}", []).append(values[::step].astype(float))
        for dim, size in lengths.items():
            found.setdefault(f"length {dim}", []).append(np.array([size], float))
    return found


def lengths_of(row: Mapping[str, Array], version: Served) -> dict[str, int]:
    """Sizes of a row's dynamic dimensions, without padding that a mask marks; as `valid_part`."""
    return _valid(row, version)[1]


def valid_part(row: Mapping[str, Array], version: Served) -> dict[str, Array]:
    """A row without the padding after what its masks mark; fixed sizes are left as they are."""
    lengths = lengths_of(row, version)
    cut = {}
    for spec in version.master.inputs:
        if (dims := dims_of(spec, row)) is not None:
            ends = [lengths.get(dim) if isinstance(dim, str) else None for dim in dims]
            cut[spec.name] = row[spec.name][tuple(map(slice, ends))]
    return cut


def _valid(row: Mapping[str, Array], version: Served) -> tuple[dict[_Dims, Array], dict[str, int]]:
    """Where masks of one dimension are open, by that, and the lengths."""
    masks = masks_of(version.recipe)
    valid: dict[_Dims, Array] = {}
    lengths: dict[str, int] = {}
    for spec in sorted(version.master.inputs, key=lambda spec: spec.name not in masks):
        if (dims := dims_of(spec, row)) is None:
            continue
        array = row[spec.name]
        if spec.name in masks and array.ndim == 1:
            valid[dims] = array != 0
            length = int(np.flatnonzero(array).max(initial=-1)) + 1
            lengths[str(dims[0])] = max(length, lengths.get(str(dims[0]), 0))
        for dim, size in zip(dims, array.shape, strict=True):
            if isinstance(dim, str) and dim != version.recipe.batching.batch_dim:
                lengths.setdefault(dim, size)
    return valid, lengths


def masks_of(recipe: Recipe) -> list[str]:
    """Names of the inputs that mark what is valid."""
    masks = [(name, each) for name, each in recipe.inputs.items() if each.role is InputRole.MASK]
    return [name for name, each in masks if not each.marks_padding]


def dims_of(spec: TensorSpec, row: Mapping[str, Array]) -> _Dims | None:
    """What the axes of a row's array are; None where the row lacks it."""
    array = row.get(spec.name)
    return None if array is None else spec.shape[len(spec.shape) - array.ndim :]


def drifts(before: Features, now: Features) -> list[Drift]:
    """The distance of each feature that both have."""
    random = np.random.default_rng(0)
    return [_drift(what, before[what], now[what], random) for what in sorted(before) if what in now]


def _drift(
    what: str, before: Sequence[Array], now: Sequence[Array], random: np.random.Generator
) -> Drift:
    sides = [_some(side, random) for side in (before, now)]
    both = sides[0] + sides[1]
    noise = 0.0
    for _ in range(_NUM_PARTINGS):
        order = random.permutation(len(both))
        parts = [[both[i] for i in part] for part in np.split(order, [len(sides[0])])]
        noise = max(noise, _distance(*parts))
    return Drift(what, _distance(*sides), noise)


def _some(rows: Sequence[Array], random: np.random.Generator) -> list[Array]:
    chosen = random.permutation(len(rows))[:_MAX_ROWS]
    return [rows[i] for i in sorted(chosen)]


def _distance(before: Sequence[Array], now: Sequence[Array]) -> float:
    values = np.concatenate([*before, *now])
    # Each row counts the same, however many values it has.
    shares = [1 / len(before)] * len(before) + [-1 / len(now)] * len(now)
    sizes = [len(row) for row in (*before, *now)]
    steps = np.repeat(np.array(shares) / sizes, sizes)
    order = np.argsort(values, kind="stable")
    is_last = np.append(np.diff(values[order]) != 0, True)
    return float(np.abs(np.cumsum(steps[order])[is_last]).max())
