"""Real inputs that came with a model, as samples of a proof."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.ranking import sample_chunks
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe
from services.contracts.traffic.drift import ServedInputs, valid_part
from services.contracts.traffic.fitting_rows import bucket_of, stacked_rows

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
        samples: arrays by input name, [rows, ...], one row per sample; None gives no runs.
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
    is_traffic = variant is SampleVariant.TRAFFIC
    parts = (
        _by_bucket(samples, ServedInputs(master, recipe, buckets))
        if is_traffic
        else [(samples, buckets)]
    )
    chunks = [sample_chunks(arrays, master, recipe, holding) for arrays, holding in parts]
    return [
        replace(_sample(number, inputs, master, buckets), variant=variant)
        for runs in chunks
        for number, (inputs, _) in enumerate(runs)
        if number % -(-len(runs) // MAX_RUNS) == 0
    ]


def _by_bucket(
    samples: Mapping[str, Array], served: ServedInputs
) -> list[tuple[Mapping[str, Array], Sequence[Bucket]]]:
    """Rows by the bucket that takes them: padded alike, all would run in the largest alone."""
    groups: dict[int, list[Mapping[str, Array]]] = {}
    for arrays in zip(*samples.values(), strict=True):
        row = valid_part(dict(zip(samples, arrays, strict=True)), served)
        bucket = bucket_of(row, served) or served.buckets[-1]
        groups.setdefault(served.buckets.index(bucket), []).append(row)
    parts = [(rows, [served.buckets[number]]) for number, rows in sorted(groups.items())]
    return [(stacked_rows(rows, served._replace(buckets=own)), own) for rows, own in parts]


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
