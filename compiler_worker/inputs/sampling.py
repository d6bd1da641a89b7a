"""Proof inputs: drawn from a seed, over the edges of every bucket.

The same seed, bucket and sizes give the same bytes in every process and on every
platform, so a reference is computed once and a failed proof can be repeated anywhere.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import chain, zip_longest

import numpy as np

from compiler_worker.inputs.float_draws import draw_floats, takes_zero
from compiler_worker.inputs.integer_draws import draw_integers, drawn_role
from compiler_worker.inputs.mask_draws import (
    MANY_ROWS,
    draw_mask,
    mask_shapes,
    may_be_left_padded,
)
from compiler_worker.inputs.sample_sizes import (
    each_once,
    edge_sizes,
    interior_sizes,
    largest_but_one,
    least_but_one,
    timed_sizes,
)
from compiler_worker.inputs.string_draws import draw_strings, put_choices
from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.document import canonical_json
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Bucket, InputRecipe, InputRole, Recipe
from services.engines.shapes import shape_at

DEFAULT_SEED = 20_261

# So many rows make a column's own spread significant.
_MIN_ROWS = 8


class SampleVariant(StrEnum):
    """How masks and values were drawn.

    FULL: all positions valid. RAGGED: rows of different length, of many every second one with
    its invalid positions first. LEFT_PADDED: few rows, all of them so. SAME_FIRST_ROW: the first
    of several rows is that of another sample. LARGE: values of eight times the usual size. SMALL:
    of a 64th of it. ZERO: silence and black images. GIVEN: real inputs. TRAFFIC: of requests.
    """

    FULL = "full"
    RAGGED = "ragged"
    LEFT_PADDED = "left_padded"
    SAME_FIRST_ROW = "same_first_row"
    LARGE = "large"
    SMALL = "small"
    ZERO = "zero"
    GIVEN = "given"
    TRAFFIC = "traffic"

    @property
    def is_extreme(self) -> bool:
        """Whether values are none of the usual ones: outputs differ in size from usual ones."""
        return self in _SCALES


# What overflows in half precision at so many times the usual size, or leaves the range of scales
# that were taken from usual values; beside what the epsilon of a norm or the least number of a type
# counts; and what a half keeps no small number of beside 0.
_SCALES = {SampleVariant.LARGE: 8.0, SampleVariant.SMALL: 1 / 64, SampleVariant.ZERO: 0.0}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Inputs of one run.

    Attributes:
        bucket: label of the bucket they lie in.
        sizes: the dynamic dimensions.
        variant: how its masks and values were drawn.
        inputs: array by input name.
        seed: what they were drawn from; of given ones the number of their run.
    """

    bucket: str
    sizes: dict[str, int]
    variant: SampleVariant
    inputs: dict[str, Array]
    seed: int = DEFAULT_SEED


def timed_samples(master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]) -> list[Sample]:
    """Inputs to time an engine with.

    Args:
        master: names the inputs and their shapes.
        recipe: how each is drawn.
        buckets: what is served; equal sizes of two are timed once.
    """
    shapes = each_once(buckets, timed_sizes)
    return [draw_sample(master, recipe, bucket, sizes) for bucket, sizes in shapes]


def proof_samples(
    master: MasterRecord,
    recipe: Recipe,
    buckets: Sequence[Bucket],
    seed: int = DEFAULT_SEED,
    engine_seed: int | None = None,
) -> list[Sample]:
    """Draw every sample of an engine's buckets, large and small ones in turn.

    Args:
        master: names and shapes of the inputs.
        recipe: how each is drawn. Masks of several rows are ragged, and full once at a bucket's
            usual sizes; that of a single row is drawn full, and partly valid.
        buckets: each is drawn at its edges, one inside of them, and between.
        seed: the same for all engines of a master, so that a reference is computed once.
        engine_seed: adds sizes and values that no other engine is proven with.
    """
    draw = partial(draw_sample, master, recipe)
    samples = [
        draw(bucket, sizes, variant=variant, seed=seed)
        for bucket, sizes in each_once(buckets, lambda each: _proof_sizes(each, seed))
        for variant in _variants(master, recipe, bucket, sizes)
    ]
    if engine_seed is not None:
        samples += [
            draw(bucket, sizes, variant=usual_variant(master, recipe, sizes), seed=engine_seed)
            for bucket, sizes in each_once(buckets, lambda each: [_inner(each, engine_seed)])
        ]
    samples += _further_rows(samples, master, recipe, buckets)
    samples = _in_turns(samples)
    if engine_seed is not None:
        _add_same_first_row(samples, master, recipe, buckets[0], engine_seed)
    return samples


def _add_same_first_row(
    samples: list[Sample], master: MasterRecord, recipe: Recipe, bucket: Bucket, seed: int
) -> None:
    """Other values in a shape that the engine has just seen, behind the sample that they are like.

    What keeps an answer, and knows it by a part of the inputs, gives it again.
    """
    sizes = timed_sizes(bucket)[0]
    like = (sizes, usual_variant(master, recipe, sizes), DEFAULT_SEED)
    place = [(each.sizes, each.variant, each.seed) for each in samples].index(like)
    variant = SampleVariant.SAME_FIRST_ROW
    sample = draw_sample(master, recipe, bucket, sizes, variant=variant, seed=seed)
    samples.insert(place + 1, sample)


def _proof_sizes(bucket: Bucket, seed: int) -> list[dict[str, int]]:
    beside_edges = least_but_one(bucket), largest_but_one(bucket)
    return [*edge_sizes(bucket), *beside_edges, _inner(bucket, seed)]


def _inner(bucket: Bucket, seed: int) -> dict[str, int]:
    return interior_sizes(bucket, _generator(seed, bucket.label, {}, SampleVariant.FULL, "sizes"))


def _further_rows(
    samples: Sequence[Sample], master: MasterRecord, recipe: Recipe, buckets: Sequence[Bucket]
) -> list[Sample]:
    """More draws at the usual sizes, for a model whose usual sizes have few rows.

    And at the fewest rows, where outputs are integers: of one a wrong engine shows no more than a
    rounding does.
    """
    batch = recipe.batching.batch_dim or ""
    drawn = [s for s in samples if not s.variant.is_extreme and all(s.sizes.values())]
    further = list[Sample]()
    if not drawn:
        return further
    places = [(buckets[-1], timed_sizes(buckets[-1])[0], False)]
    if batch in buckets[0].dims and any(map(is_integer, master.outputs)):
        fewest = {batch: max(buckets[0].dims[batch].min, 1)}
        places.append((buckets[0], timed_sizes(buckets[0])[0] | fewest, True))
    for bucket, sizes, is_fewest in places:
        num = sizes.get(batch, 1)
        variant = usual_variant(master, recipe, sizes)
        rows = (sample.sizes.get(batch, 1) for sample in (*drawn, *further))
        missing = _MIN_ROWS - sum(each for each in rows if each == num or not is_fewest)
        for _ in range(0, missing, num):
            # Not the engine's seed: these too are answered once for all engines of a master.
            seed = DEFAULT_SEED + 1 + len(further)
            further.append(draw_sample(master, recipe, bucket, sizes, variant=variant, seed=seed))
    return further


def _in_turns(samples: Sequence[Sample]) -> list[Sample]:
    """Largest, smallest, and so on: what is left in buffers shows where another size follows."""
    ranked = sorted(samples, key=_num_elements, reverse=True)
    half = (len(ranked) + 1) // 2
    pairs = zip_longest(ranked[:half], reversed(ranked[half:]))
    return [sample for sample in chain.from_iterable(pairs) if sample is not None]


def _num_elements(sample: Sample) -> int:
    return sum(array.size for array in sample.inputs.values())


def draw_sample(
    master: MasterRecord,
    recipe: Recipe,
    bucket: Bucket,
    sizes: Mapping[str, int],
    *,
    variant: SampleVariant = SampleVariant.FULL,
    seed: int = DEFAULT_SEED,
) -> Sample:
    """Draw the inputs of one run at the given sizes.

    Args:
        master: names the inputs and their shapes.
        recipe: how each is drawn.
        bucket: its label goes into the seed of every input.
        sizes: one for each dynamic dimension.
        variant: usual, ragged or extreme values.
        seed: equal arguments give equal bytes on every host.
    """
    if variant is SampleVariant.SAME_FIRST_ROW:
        return _same_first_row(master, recipe, bucket, sizes, seed)
    inputs = dict[str, Array]()
    for spec in master.inputs:
        generator = _generator(seed, bucket.label, sizes, variant, spec.name)
        drawn = _draw(spec, master, recipe, sizes, generator, variant)
        own, known = _described(spec, master, recipe)
        put_choices(drawn, known.choices_beside(own), generator)
        inputs[spec.name] = drawn
    return Sample(bucket=bucket.label, sizes=dict(sizes), variant=variant, inputs=inputs, seed=seed)


def _same_first_row(
    master: MasterRecord, recipe: Recipe, bucket: Bucket, sizes: Mapping[str, int], seed: int
) -> Sample:
    usual = usual_variant(master, recipe, sizes)
    first, own = (
        draw_sample(master, recipe, bucket, sizes, variant=usual, seed=each)
        for each in (DEFAULT_SEED, seed)
    )
    for spec in master.inputs:
        array = own.inputs[spec.name]
        # A single row would be the same sample once more.
        if spec.shape[:1] == (recipe.batching.batch_dim,) and len(array) > 1:
            array[0] = first.inputs[spec.name][0]
    return replace(own, variant=SampleVariant.SAME_FIRST_ROW)


def _variants(
    master: MasterRecord, recipe: Recipe, bucket: Bucket, sizes: Mapping[str, int]
) -> list[SampleVariant]:
    lengths = mask_shapes(master, recipe, sizes)
    fewest = min((math.prod(shape[:-1]) for shape in lengths), default=0)
    is_usual = sizes == timed_sizes(bucket)[0]
    # Requests of one length are joined to batches without a pad.
    variants = [SampleVariant.FULL] if fewest == 1 or not lengths or is_usual else []
    if lengths:
        variants.append(SampleVariant.RAGGED)
    is_few = 0 < fewest < MANY_ROWS and may_be_left_padded(master, recipe)
    if is_few and sizes in timed_sizes(bucket):
        variants.append(SampleVariant.LEFT_PADDED)
    if is_usual:
        variants += _extremes(master, recipe)
    return variants


def _extremes(master: MasterRecord, recipe: Recipe) -> list[SampleVariant]:
    """Those that some input of floats takes: of a recipe's range nothing is drawn beyond it."""
    floats = [recipe.inputs.get(s.name, InputRecipe()) for s in master.inputs if is_floating(s)]
    has_open = any(not own.has_range for own in floats)
    scaled = [SampleVariant.LARGE, SampleVariant.SMALL] if has_open else []
    return scaled + ([SampleVariant.ZERO] if any(map(takes_zero, floats)) else [])


def _described(
    spec: TensorSpec, master: MasterRecord, recipe: Recipe
) -> tuple[InputRecipe, InputValues]:
    """What the recipe says of an input, and what the graph shows."""
    known = master.input_values.get(spec.name, InputValues())
    return recipe.inputs.get(spec.name, InputRecipe()), known


def usual_variant(master: MasterRecord, recipe: Recipe, sizes: Mapping[str, int]) -> SampleVariant:
    """How inputs are drawn as a rule: ragged where they have masks, else full.

    Args:
        master: names the inputs and their shapes.
        recipe: says which are masks.
        sizes: one for each dynamic dimension.
    """
    has_masks = bool(mask_shapes(master, recipe, sizes))
    return SampleVariant.RAGGED if has_masks else SampleVariant.FULL


def is_integer(spec: TensorSpec) -> bool:
    """Whether a tensor holds integers or booleans."""
    return spec.datatype != BYTES and NUMPY_FROM_DATATYPE[spec.datatype].kind in "biu"


def is_floating(spec: TensorSpec) -> bool:
    """Whether a tensor holds floats: strings are neither floats nor integers."""
    return spec.datatype != BYTES and not is_integer(spec)


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
    master: MasterRecord,
    recipe: Recipe,
    sizes: Mapping[str, int],
    generator: np.random.Generator,
    variant: SampleVariant,
) -> Array:
    shape = shape_at(spec, dict(sizes))
    own, known = _described(spec, master, recipe)
    if spec.datatype == BYTES:
        return draw_strings(shape, own.strings, generator)
    dtype = NUMPY_FROM_DATATYPE[spec.datatype]
    if drawn_role(master, recipe, spec.name) is InputRole.MASK:
        mask = np.ones(shape, bool)
        if variant in (SampleVariant.RAGGED, SampleVariant.LEFT_PADDED):
            has_pads_first = variant is SampleVariant.LEFT_PADDED
            mask = draw_mask(shape, generator, own.padding_side, has_pads_first=has_pads_first)
        return (mask == 0 if own.marks_padding else mask).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, size=shape).astype(dtype)
    if dtype.kind in "iu":
        return draw_integers(shape, own, known, generator).astype(dtype)
    return draw_floats(shape, own, known, generator, _SCALES.get(variant, 1.0)).astype(dtype)
