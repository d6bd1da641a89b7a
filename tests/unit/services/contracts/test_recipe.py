"""Recipes: defaults, and a wrong value said by key, value and expectation."""

import pytest
from pydantic import ValidationError

from services.contracts.errors import InvalidRecipeError
from services.contracts.kinds import EngineKind, Precision
from services.contracts.recipe import Bucket, DimRange, InputRole, Recipe

FULL = """
kinds: [inductor, tensorrt]
precisions: [fp32, fp16]
buckets:
  - dims:
      batch: {min: 1, opt: 4, max: 8}
      sequence: {min: 1, opt: 64, max: 128}
inputs:
  attention_mask: {role: mask}
outputs:
  tokens: {valid_where: attention_mask}
tolerances:
  fp16: {rel_l2: 0.01, max_abs: 0.1, cosine_distance: 0.001}
ranking: {output: embedding}
batching: {max_delay_ms: 2, max_queue: 64}
num_replicas: 2
"""


@pytest.mark.parametrize("text", ["", "{}", "# only a comment\n"])
def test_a_recipe_without_words_has_defaults(text: str) -> None:
    recipe = Recipe.from_yaml(text)
    assert recipe == Recipe()
    assert recipe.kinds == tuple(EngineKind)
    assert recipe.precisions == (Precision.FP32,)


def test_a_full_recipe_is_read() -> None:
    recipe = Recipe.from_yaml(FULL)
    assert recipe.kinds == (EngineKind.INDUCTOR, EngineKind.TENSORRT)
    assert recipe.buckets[0].dims["sequence"] == DimRange(min=1, opt=64, max=128)
    assert recipe.inputs["attention_mask"].role is InputRole.MASK
    assert recipe.tolerances[Precision.FP16].rel_l2 == 0.01
    assert recipe.ranking is not None
    assert recipe.ranking.top_k == 10
    assert recipe.batching.max_queue == 64
    assert Recipe.from_json(recipe.canonical_json()) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("precisions: [fp12]", r"recipe: precisions\.0: got 'fp12': .*'fp32', 'fp16' or 'bf16'"),
        ("replicas: 2", r"recipe: replicas: got 2: Extra inputs are not permitted"),
        ("num_replicas: 0", r"recipe: num_replicas: got 0: .*greater than or equal to 1"),
        ("batching: {max_delay_ms: -1}", r"recipe: batching\.max_delay_ms: got -1"),
        (
            "buckets: [{dims: {batch: {min: 4, opt: 2, max: 8}}}]",
            r"buckets\.0\.dims\.batch: .*expected min <= opt <= max, got 4, 2, 8",
        ),
        ("tolerances: {fp16: {rel_l2: 0, max_abs: 1, cosine_distance: 1}}", r"rel_l2: got 0"),
        ("just text", r"recipe: document: got 'just text'"),
        ("[1, 2]", r"recipe: document: got \[1, 2\]"),
        ("a: [1", r"recipe: .*line 1"),
        ("a: !!python/object/apply:os.getcwd []", r"recipe: .*could not determine a constructor"),
    ],
)
def test_a_wrong_value_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"(?s){message}"):
        Recipe.from_yaml(text)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4, 8), (8, 8, 8)])
def test_a_range_is_ordered(sizes: tuple[int, int, int]) -> None:
    smallest, usual, largest = sizes
    assert DimRange(min=smallest, opt=usual, max=largest).opt == usual


@pytest.mark.parametrize("sizes", [(0, 1, 1), (2, 1, 4), (1, 5, 4), (4, 2, 1)])
def test_a_range_out_of_order_is_refused(sizes: tuple[int, int, int]) -> None:
    smallest, usual, largest = sizes
    with pytest.raises(ValidationError):
        DimRange(min=smallest, opt=usual, max=largest)


BUCKET = Bucket(
    dims={"sequence": DimRange(min=1, opt=64, max=128), "batch": DimRange(min=2, opt=4, max=8)}
)


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ({"batch": 2, "sequence": 1}, True),
        ({"batch": 8, "sequence": 128}, True),
        ({"batch": 8, "sequence": 128, "more": 5}, True),
        ({"batch": 1, "sequence": 1}, False),
        ({"batch": 9, "sequence": 1}, False),
        ({"batch": 8, "sequence": 129}, False),
        ({"batch": 8}, False),
        ({}, False),
    ],
)
def test_which_sizes_a_bucket_holds(sizes: dict[str, int], fits: bool) -> None:
    assert BUCKET.holds(sizes) is fits


def test_a_bucket_is_labelled_by_its_largest_sizes() -> None:
    assert BUCKET.label == "batch8-sequence128"
    assert Bucket(dims={}).label == "static"
