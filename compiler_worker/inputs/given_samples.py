"""Real inputs that came with a model, as samples of a proof."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.ranking import sample_chunks
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, InputRecipe, Recipe
from services.contracts.traffic.drift import lengths_of

# Runs, taken evenly from all: a proof needs the distribution of real inputs, not each of them.
MAX_RUNS = 8


def given_samples(
    samples: Mapping[str, Array] | None,
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
    variant: SampleVariant = SampleVariant.GIVEN,
) -> list[Sample]:
    """Runs of the largest batch that the samples' bucket holds; of TRAFFIC runs of each bucket.

    Args:
        samples: arrays by input name, one row per sample; None gives no runs.
        master: names the inputs and their shapes.
        recipe: names the batch dimension.
        buckets: what is served.
        variant: GIVEN or TRAFFIC.

    Returns:
        At most MAX_RUNS runs of a bucket, taken evenly from all.

    Raises:
        InvalidRequestError: they fit no bucket, or the model has no batch dimension.
    """
    if samples is None:
        return []
    parts = [(samples, buckets)]
    if variant is SampleVariant.TRAFFIC:
        parts = _by_bucket(samples, master, recipe, buckets)
    runs: dict[int, dict[str, Array]] = {}
    num_chunks = 0
    for arrays, holding in parts:
        chunks = sample_chunks(arrays, master, recipe, holding)
        step = -(-len(chunks) // MAX_RUNS)
        for number in range(0, len(chunks), step):
            runs[num_chunks + number] = chunks[number][0]
        num_chunks += len(chunks)
    return [
        replace(_sample(number, inputs, master, buckets), variant=variant)
        for number, inputs in runs.items()
    ]


def _by_bucket(
    samples: Mapping[str, Array], master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> list[tuple[Mapping[str, Array], Sequence[Bucket]]]:
    """Rows by the first bucket that takes what masks mark of them, cut to the longest of each.

    Padded to the longest of all, every row would run in the largest bucket alone.
    """
    sizes = [
        lengths_of(dict(zip(samples, row, strict=True)), master, recipe)
        for row in zip(*samples.values(), strict=True)
    ]
    firsts = [next((n for n, b in enumerate(buckets) if _takes(b, each)), -1) for each in sizes]
    parts: list[tuple[Mapping[str, Array], Sequence[Bucket]]] = []
    for first in sorted({*firsts}):
        bucket = buckets[first]
        rows = [number for number, each in enumerate(firsts) if each == first]
        ends = {
            dim: max(*(sizes[row][dim] for row in rows), bucket.dims[dim].min)
            for dim in sizes[0]
            if dim in bucket.dims
        }
        cut = {}
        for spec in master.inputs:
            pad = recipe.inputs.get(spec.name, InputRecipe()).pad
            cut[spec.name] = _sized(samples[spec.name][rows], spec, ends, pad)
        parts.append((cut, [bucket]))
    return parts


def _sized(array: Array, spec: TensorSpec, ends: Mapping[str, int], pad: float) -> Array:
    """An array whose dimensions end where they are to, cut or padded."""
    sizes = [ends.get(str(dim), size) for dim, size in zip(spec.shape, array.shape, strict=True)]
    part = tuple(map(slice, np.minimum(sizes, array.shape)))
    sized = np.full(sizes, pad, array.dtype)
    sized[part] = array[part]
    return sized


def _takes(bucket: Bucket, sizes: Mapping[str, int]) -> bool:
    return all(size <= bucket.dims[dim].max for dim, size in sizes.items() if dim in bucket.dims)


def _sample(
    number: int, inputs: dict[str, Array], master: MasterRecord, buckets: Sequence[Bucket]
) -> Sample:
    sizes = {
        dim: size
        for spec in master.inputs
        for dim, size in zip(spec.shape, inputs[spec.name].shape, strict=True)
        if isinstance(dim, str)
    }
    bucket = next((bucket for bucket in buckets if bucket.holds(sizes)), buckets[-1])
    return Sample(
        bucket=bucket.label, sizes=sizes, variant=SampleVariant.GIVEN, inputs=inputs, seed=number
    )
