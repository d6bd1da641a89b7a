"""Rows that are drawn to calibrate with, beside those of traffic."""

import numpy as np

from compiler_worker.inputs.calibration_draws import calibration_draws
from compiler_worker.inputs.sampling import proof_samples
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, MASTER, RECIPE

BATCHED = RECIPE.model_copy(update={"batching": Batching(batch_dim="batch")})
SAMPLED = {spec.name: np.ones((9, 3), np.int64) for spec in MASTER.inputs}


def test_rows_have_the_largest_and_the_usual_length_in_turn() -> None:
    first, second, third, *_ = calibration_draws(MASTER, BATCHED, [BUCKET], SAMPLED)
    sequence = BUCKET.dims["sequence"]
    lengths = [each["ids"].shape for each in (first, second, third)]
    assert lengths == [(4, sequence.max), (4, sequence.opt), (4, sequence.max)]
    # One of them has a single position, another one its pads first.
    assert {1, sequence.max} <= set(first["mask"].sum(1).tolist())
    assert any(not row[0] and row.any() for row in first["mask"])
    assert not np.array_equal(first["ids"], third["ids"])


def test_no_row_is_one_that_a_proof_draws() -> None:
    proven = proof_samples(MASTER, BATCHED, [BUCKET], engine_seed=1)
    proven_rows = {row.tobytes() for sample in proven for row in sample.inputs["ids"]}
    drawn = calibration_draws(MASTER, BATCHED, [BUCKET], SAMPLED)
    assert not proven_rows & {row.tobytes() for each in drawn for row in each["ids"]}


def test_nothing_is_drawn_where_the_batch_alone_is_dynamic() -> None:
    images = [Bucket(dims={"batch": DimRange(min=1, opt=2, max=8)})]
    recipe = Recipe(batching=Batching(batch_dim="batch"))
    assert calibration_draws(MASTER, recipe, images, SAMPLED) == []
