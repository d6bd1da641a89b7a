"""Judges of one output, and samples for them."""

import numpy as np

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.measures.tolerances import together_for, tolerance_for
from compiler_worker.proof.output_judge import Bounds, OutputJudge
from compiler_worker.proof.power import Kept
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Recipe


def judge(
    *shape: int | str,
    datatype: str = "FP32",
    precision: Precision = Precision.FP32,
    recipe: Recipe | None = None,
) -> OutputJudge:
    """Of an output `y`, by the default bounds."""
    recipe = recipe or Recipe()
    bounds = Bounds(
        spec=TensorSpec(name="y", datatype=datatype, shape=shape),
        recipe=recipe,
        precision=precision,
        allowed=tolerance_for(precision, recipe),
        together=together_for(precision, recipe),
    )
    return OutputJudge.of(bounds)


def sample(variant: SampleVariant = SampleVariant.FULL) -> Sample:
    """Its inputs are not looked at."""
    return Sample(bucket="b", sizes={}, variant=variant, inputs={})


def met(judge: OutputJudge, wanted: Array, found: Array | None = None) -> list[Kept]:
    """Have the judge see one answer, by default the reference's own; what is kept of it."""
    found = wanted if found is None else found
    judge.expect(sample(), {"y": wanted})
    judge.compare(sample(), {"y": found}, {"y": wanted})
    return [Kept(sample=sample(), wanted={"y": wanted})]


def normal(*shape: int, seed: int = 1) -> Array:
    """Values around zero."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
