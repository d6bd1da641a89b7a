"""Rows that are calibrated with beside those of traffic: of lengths and masks that it seldom has.

A proof holds an engine to every size of its buckets, and to rows of a single word. At the largest
lengths MiniLM in int8 that was calibrated with sampled texts alone was 0.58 (relative L2) off, with
these below 0.2, and closer on texts too (`traffic_int8_cpu_202611.md`). Their pads are on either
side even where traffic has none before words: with pads behind alone the largest error of a value
grew by a third.
"""

from collections.abc import Mapping, Sequence

from compiler_worker.inputs.calibrated_recipe import ranged_recipe
from compiler_worker.inputs.mask_draws import MANY_ROWS
from compiler_worker.inputs.sampling import draw_sample, usual_variant
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, Recipe

# None that a proof draws from: an engine is not proven with what it was calibrated with.
_SEED = 7_040_261
# One after each third row of traffic, of which no more are taken.
_NUM_DRAWN = 75


def calibration_draws(
    master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket], sampled: Mapping[str, Array]
) -> list[dict[str, Array]]:
    """Feeds of a few rows; none where nothing but the batch is dynamic.

    Args:
        master: names the inputs and their shapes.
        recipe: how each is drawn.
        buckets: those of the engine, whose largest and usual sizes are drawn in turn.
        sampled: the rows of traffic, [rows, ...] by input name; floats are drawn with their mean
            and spread.

    Returns:
        Arrays by input name, each of its spec's shape at the sizes that were drawn.
    """
    batch = recipe.batching.batch_dim
    if all({*bucket.dims} <= {batch} for bucket in buckets):
        return []
    drawn_by = ranged_recipe(recipe, master, sampled)
    places = [(bucket, is_largest) for bucket in buckets for is_largest in (True, False)]
    found = []
    for number in range(_NUM_DRAWN):
        bucket, is_largest = places[number % len(places)]
        sizes = {name: r.max if is_largest else r.opt for name, r in bucket.dims.items()}
        if batch in bucket.dims:
            sizes[batch] = min(bucket.dims[batch].max, MANY_ROWS)
        place = (master, drawn_by, bucket, sizes)
        variant = usual_variant(master, drawn_by, sizes)
        found.append(draw_sample(*place, variant=variant, seed=_SEED + number).inputs)
    return found
