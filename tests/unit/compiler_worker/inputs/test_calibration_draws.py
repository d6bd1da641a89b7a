"""Rows that are drawn beside those of traffic, to calibrate with."""

import numpy as np

from compiler_worker.inputs.calibration_draws import beside_drawn
from compiler_worker.inputs.sampling import proof_samples
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.unit.compiler_worker.inputs.sampled import BUCKET, MASTER, RECIPE

BATCHED = RECIPE.model_copy(update={"batching": Batching(batch_dim="batch")})


def short_feeds(num: int) -> list[dict[str, Array]]:
    return [{spec.name: np.ones((1, 3), np.int64) for spec in MASTER.inputs} for _ in range(num)]


def test_rows_of_the_largest_and_the_usual_length_come_after_each_third_row() -> None:
    feeds = short_feeds(8)
    found = beside_drawn(feeds, MASTER, BATCHED, [BUCKET], feeds[0])
    assert [place for place, feed in enumerate(found) if any(feed is each for each in feeds)] == [
        0,
        2,
        3,
        4,
        6,
        7,
        8,
        10,
    ]
    drawn = [found[place] for place in (1, 5, 9)]
    sequence = BUCKET.dims["sequence"]
    lengths = [each["ids"].shape[1] for each in drawn]
    assert lengths == [sequence.max, sequence.opt, sequence.max]
    (mask, *_) = (each["mask"] for each in drawn)
    # One of them has a single position, another one its pads first.
    assert {1, sequence.max} <= set(mask.sum(1).tolist())
    assert any(not row[0] and row.any() for row in mask)
    assert not np.array_equal(drawn[0]["ids"], drawn[2]["ids"])


def test_no_drawn_row_is_one_that_a_proof_draws() -> None:
    feeds = short_feeds(24)
    found = beside_drawn(feeds, MASTER, BATCHED, [BUCKET], feeds[0])
    proven = proof_samples(MASTER, BATCHED, [BUCKET], engine_seed=1)
    rows = {row.tobytes() for sample in proven for row in sample.inputs["ids"] if len(row) > 8}
    longest = [row for each in found for row in each["ids"] if len(row) > 8]
    assert longest
    assert not rows & {row.tobytes() for row in longest}


def test_nothing_is_drawn_where_the_batch_alone_is_dynamic() -> None:
    feeds = short_feeds(6)
    images = [Bucket(dims={"batch": DimRange(min=1, opt=2, max=8)})]
    recipe = Recipe(batching=Batching(batch_dim="batch"))
    assert beside_drawn(feeds, MASTER, recipe, images, feeds[0]) == feeds
