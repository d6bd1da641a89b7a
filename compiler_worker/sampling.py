"""Proof inputs: drawn from a seed, over the edges of every bucket.

The same seed, bucket and sizes give the same bytes in every process and on every
platform, so a reference is computed once and a failed proof can be repeated anywhere.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np

from services.contracts.byte_strings import BYTES, STRING_DTYPE
from services.contracts.document import canonical_json
from services.contracts.manifest import MasterRecord
from services.contracts.recipe import Bucket, InputRecipe, InputRole, Recipe
from services.contracts.tensors import NUMPY_FROM_DATATYPE, Array, TensorSpec
from services.engines.shapes import shape_at

DEFAULT_SEED = 20_261
# Two values: a table or a mask has at least as many, and inputs that are all one value would
# leave most of a model unproven.
_INTEGERS_BY_DEFAULT = 2


class SampleVariant(StrEnum):
    """Masks with all positions valid, or with rows of different length."""

    FULL = "full"
    RAGGED = "ragged"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Inputs of one run.

    Attributes:
        bucket: label of the bucket they lie in.
        sizes: the dynamic dimensions.
        variant: how its masks were drawn.
        inputs: array by input name.
    """

    bucket: str
    sizes: dict[str, int]
    variant: SampleVariant
    inputs: dict[str, Array]


def edge_sizes(bucket: Bucket) -> list[dict[str, int]]:
    """Concrete sizes that cover a bucket: every dimension at its min, opt and max.

    All combinations for one and two dimensions. For more, whose combinations explode:
    all at min, opt and max, and each at one end while the others are at the other.
    Where a dimension begins at 0, so it does at 1: what is fixed for either serves both.
    """
    names = sorted(bucket.dims)
    ranges = [bucket.dims[name] for name in names]
    if len(names) <= 2:
        corners = list(product(*((r.min, max(r.min, 1), r.opt, r.max) for r in ranges)))
    else:
        low, opt, high = ([getattr(r, end) for r in ranges] for end in ("min", "opt", "max"))
        least = [max(r.min, 1) for r in ranges]
        corners = [tuple(low), tuple(least), tuple(opt), tuple(high)]
        for i in range(len(names)):
            corners.append((*high[:i], low[i], *high[i + 1 :]))
            corners.append((*low[:i], high[i], *low[i + 1 :]))
    return [dict(zip(names, corner, strict=True)) for corner in dict.fromkeys(corners)]


def timed_sizes(bucket: Bucket) -> list[dict[str, int]]:
    """The sizes at which an engine is timed: all at opt, all at max."""
    opt = {name: r.opt for name, r in bucket.dims.items()}
    largest = {name: r.max for name, r in bucket.dims.items()}
    return [opt] if opt == largest else [opt, largest]


def timed_samples(master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]) -> list[Sample]:
    """Inputs to time an engine with."""
    shapes = _each_once(buckets, timed_sizes)
    return [draw_sample(master, recipe, bucket, sizes) for bucket, sizes in shapes]


def proof_samples(
    master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket], seed: int = DEFAULT_SEED
) -> Iterator[Sample]:
    """Draw every sample of an engine's buckets.

    Masks of several rows are ragged, with a shortest and a full row among them; a single row
    is drawn twice, full and partly valid.
    """
    for bucket, sizes in _each_once(buckets, edge_sizes):
        for variant in _variants(master, recipe, sizes):
            yield draw_sample(master, recipe, bucket, sizes, variant=variant, seed=seed)


def _each_once(
    buckets: Sequence[Bucket], sizes_of: Callable[[Bucket], list[dict[str, int]]]
) -> list[tuple[Bucket, dict[str, int]]]:
    """Sizes of all buckets, without those of an earlier bucket.

    An engine sees sizes, never a bucket's name: the same sizes run the same code.
    """
    first: dict[tuple[tuple[str, int], ...], tuple[Bucket, dict[str, int]]] = {}
    for bucket in buckets:
        for sizes in sizes_of(bucket):
            first.setdefault(tuple(sorted(sizes.items())), (bucket, sizes))
    return list(first.values())


def draw_sample(
    master: MasterRecord,
    recipe: Recipe,
    bucket: Bucket,
    sizes: Mapping[str, int],
    *,
    variant: SampleVariant = SampleVariant.FULL,
    seed: int = DEFAULT_SEED,
) -> Sample:
    """Draw the inputs of one run at the given sizes."""
    inputs = {
        spec.name: _draw(
            spec,
            recipe.inputs.get(spec.name, InputRecipe()),
            sizes,
            _generator(seed, bucket.label, sizes, variant, spec.name),
            is_ragged=variant is SampleVariant.RAGGED,
        )
        for spec in master.inputs
    }
    return Sample(bucket=bucket.label, sizes=dict(sizes), variant=variant, inputs=inputs)


def _variants(
    master: MasterRecord, recipe: Recipe, sizes: Mapping[str, int]
) -> tuple[SampleVariant, ...]:
    shapes = [
        shape_at(spec, dict(sizes))
        for spec in master.inputs
        if recipe.inputs.get(spec.name, InputRecipe()).role is InputRole.MASK
    ]
    if not shapes:
        return (SampleVariant.FULL,)
    is_single_row = any(math.prod(shape[:-1]) == 1 for shape in shapes)
    is_whole = all(shape[-1:] in ((), (0,), (1,)) for shape in shapes)
    if is_whole:  # nothing to mask out: one valid position is all there is
        return (SampleVariant.FULL,)
    return tuple(SampleVariant) if is_single_row else (SampleVariant.RAGGED,)


def _generator(
    seed: int, bucket: str, sizes: Mapping[str, int], variant: SampleVariant, name: str
) -> np.random.Generator:
    # Python's own hash differs from process to process; a digest does not. Each input has
    # its own stream, so adding one leaves the others as they were.
    words = canonical_json([seed, bucket, dict(sizes), variant, name])
    entropy = int.from_bytes(hashlib.sha256(words).digest(), "big")
    return np.random.Generator(np.random.PCG64(entropy))


def _draw(
    spec: TensorSpec,
    recipe: InputRecipe,
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    *,
    is_ragged: bool,
) -> Array:
    shape = shape_at(spec, dict(sizes))
    if spec.datatype == BYTES:
        return _strings(shape, recipe.strings, generator)
    dtype = NUMPY_FROM_DATATYPE[spec.datatype]
    if recipe.role is InputRole.MASK:
        return _mask(shape, generator, is_ragged=is_ragged).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, size=shape).astype(dtype)
    if dtype.kind in "iu":
        low = math.ceil(recipe.low)
        high = low + _INTEGERS_BY_DEFAULT if recipe.high is None else math.ceil(recipe.high)
        return generator.integers(low, max(low + 1, high), size=shape).astype(dtype)
    high_value = recipe.low + 1.0 if recipe.high is None else recipe.high
    return generator.uniform(recipe.low, high_value, size=shape).astype(dtype)


def _strings(shape: tuple[int, ...], words: Sequence[str], generator: np.random.Generator) -> Array:
    """Each word about as often as any other, so that a few elements meet the most of them."""
    places = np.resize(generator.permutation(len(words)), math.prod(shape))
    strings: Array = np.array(words, dtype=STRING_DTYPE)[generator.permutation(places)]
    return strings.reshape(shape)


def _mask(shape: tuple[int, ...], generator: np.random.Generator, *, is_ragged: bool) -> Array:
    """Valid positions first; of several rows one has just one and one has all."""
    length = shape[-1] if shape else 0
    if not is_ragged or not length:
        return np.ones(shape)
    lengths = generator.integers(1, length + 1, size=shape[:-1])
    if lengths.size > 1:
        lengths.flat[0], lengths.flat[1] = 1, length
    return np.arange(length) < lengths[..., np.newaxis]
