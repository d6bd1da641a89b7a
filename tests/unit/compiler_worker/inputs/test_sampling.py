"""Proof inputs: of the model's types, different between draws, the same in every process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.inputs.sampling import (
    Sample,
    SampleVariant,
    draw_sample,
    proof_samples,
)
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import check_array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, MASTER, RECIPE, fingerprint


def test_inputs_have_the_models_names_types_and_shapes() -> None:
    sample = draw_sample(MASTER, RECIPE, BUCKET, {"batch": 3, "sequence": 5})
    for spec in MASTER.inputs:
        check_array(spec, sample.inputs[spec.name])
        assert sample.inputs[spec.name].shape == (3, 5)


def test_another_engine_is_compared_at_further_sizes_and_values() -> None:
    common = proof_samples(MASTER, RECIPE, [BUCKET])
    drawn = [proof_samples(MASTER, RECIPE, [BUCKET], engine_seed=seed) for seed in (5, 6)]
    seen = {content(sample) for sample in common}
    further = [[s for s in samples if content(s) not in seen] for samples in drawn]
    assert [len(samples) for samples in further] == [2, 2]
    assert all({"batch": 4, "sequence": 16} in [s.sizes for s in samples] for samples in further)
    assert content(further[0][0]) != content(further[1][0])
    assert all(seen < {content(s) for s in samples} for samples in drawn)


def content(sample: Sample) -> bytes:
    """All inputs of a sample, to tell it from others."""
    return b"".join(array.tobytes() for _, array in sorted(sample.inputs.items()))


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "BOOL", "UINT8", "INT32"])
def test_every_datatype_can_be_drawn(datatype: str) -> None:
    spec = TensorSpec(name="x", datatype=datatype, shape=("batch", 50))
    master = MASTER.model_copy(update={"inputs": (spec,)})
    recipe = Recipe(inputs={"x": InputRecipe(low=0, high=9)})
    array = draw_sample(master, recipe, BUCKET, {"batch": 2}).inputs["x"]
    check_array(spec, array)
    assert len(np.unique(array.astype(np.float64))) > 1


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "BOOL", "UINT8", "INT64"])
def test_an_input_of_no_dimensions_is_an_array_too(datatype: str) -> None:
    """As a scale or a threshold: libraries refuse numpy's own numbers."""
    spec = TensorSpec(name="scale", datatype=datatype, shape=())
    master = MASTER.model_copy(update={"inputs": (spec,)})
    for variant in (SampleVariant.FULL, SampleVariant.LARGE):
        drawn = draw_sample(master, Recipe(), BUCKET, {}, variant=variant).inputs["scale"]
        assert isinstance(drawn, np.ndarray)
        check_array(spec, drawn)


def test_two_buckets_two_variants_two_seeds_draw_differently() -> None:
    sizes = {"batch": 4, "sequence": 16}
    other = Bucket(dims={**BUCKET.dims, "batch": DimRange(min=1, opt=4, max=9)})
    draws = [
        draw_sample(MASTER, RECIPE, BUCKET, sizes),
        draw_sample(MASTER, RECIPE, BUCKET, sizes, variant=SampleVariant.RAGGED),
        draw_sample(MASTER, RECIPE, BUCKET, sizes, seed=1),
        draw_sample(MASTER, RECIPE, other, sizes),
    ]
    assert len({draw.inputs["ids"].tobytes() for draw in draws}) == len(draws)


def test_another_process_draws_the_same_bytes() -> None:
    root = Path(__file__).resolve().parents[4]
    module = "tests.unit.compiler_worker.inputs.sampled"
    code = f"from {module} import fingerprint; print(fingerprint())"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == fingerprint()


def test_the_draw_is_the_one_that_was_always_drawn() -> None:
    """A change would compute all kept references anew and make old proofs unrepeatable."""
    assert fingerprint() == "878db6c38d73297017b7d37b109c30b6f9f5f038633348bc0ae88a8a3a252e33"
