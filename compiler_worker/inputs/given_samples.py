"""Real inputs that came with a model, as samples of a proof."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.ranking import sample_chunks
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe

# Runs, taken evenly from all: a proof needs the distribution of real inputs, not each of them.
MAX_RUNS = 8


def given_samples(
    samples: Mapping[str, Array] | None,
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
    variant: SampleVariant = SampleVariant.GIVEN,
) -> list[Sample]:
    """Runs of the largest batch that the samples' bucket holds.

    Args:
        samples: arrays by input name, one row per sample; None gives no runs.
        master: names the inputs and their shapes.
        recipe: names the batch dimension.
        buckets: what is served.
        variant: GIVEN or TRAFFIC.

    Returns:
        At most MAX_RUNS runs, taken evenly from all.

    Raises:
        InvalidRequestError: they fit no bucket, or the model has no batch dimension.
    """
    if samples is None:
        return []
    chunks = sample_chunks(samples, master, recipe, buckets)
    step = -(-len(chunks) // MAX_RUNS)
    return [
        replace(_sample(number, inputs, master, buckets), variant=variant)
        for number, (inputs, _) in enumerate(chunks)
        if number % step == 0
    ]


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
