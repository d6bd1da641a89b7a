"""A master, a recipe and a bucket to draw proof inputs of, and what tells samples apart."""

import hashlib
from collections.abc import Sequence

from compiler_worker.inputs.sampling import (
    Sample,
    SampleVariant,
    proof_samples,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from tests.conformance.tiny_model import master_record

MASTER = master_record()

RECIPE = Recipe(inputs={"ids": InputRecipe(high=40), "mask": InputRecipe(role=InputRole.MASK)})

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=4, max=8), "sequence": DimRange(min=2, opt=16, max=32)}
)


def fingerprint() -> str:
    """A digest over all samples of a bucket; also run in another process."""
    hasher = hashlib.sha256()
    for sample in proof_samples(MASTER, RECIPE, [BUCKET]):
        hasher.update(f"{sample.sizes} {sample.variant}".encode())
        for name, array in sorted(sample.inputs.items()):
            hasher.update(name.encode() + array.tobytes())
    return hasher.hexdigest()


def variants_at(samples: Sequence[Sample], **sizes: int) -> dict[SampleVariant, Sample]:
    """The samples of one shape."""
    return {sample.variant: sample for sample in samples if sample.sizes == sizes}


FLOATS = MASTER.model_copy(
    update={"inputs": (TensorSpec(name="x", datatype="FP32", shape=("batch", 50)),)}
)
