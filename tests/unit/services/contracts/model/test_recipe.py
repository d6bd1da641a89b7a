"""Recipes: defaults, and a wrong value said by key, value and expectation."""

import hashlib

import pytest
from pydantic import ValidationError

from services.contracts.errors import InvalidRecipeError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.document import canonical_json
from services.contracts.model.precision_choice import Accuracy
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.terms import proof_terms

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


def test_a_recipe_without_keys_has_defaults() -> None:
    recipe = Recipe.from_yaml("{}")
    assert recipe == Recipe()
    assert recipe.kinds == tuple(EngineKind)
    assert recipe.precisions == "auto"
    assert recipe.accuracy is Accuracy.CLOSE


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "null"])
def test_an_empty_recipe_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(InvalidRecipeError, match=r"it is empty; leave it out .*batching, buckets"):
        Recipe.from_yaml(text)


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
        (
            "precisions: [fp12]",
            r"recipe: precisions\.0: got 'fp12': .*'fp32', 'fp16', 'bf16', .* or 'fp8'",
        ),
        ("tasks: [{output: y}]", r"tasks\.0: it has no key 'metric'; expected one of top_k, iou"),
        (
            "tasks: [{metric: topk, output: y}]",
            r"tasks\.0\.metric: got 'topk', did you mean 'top_k'",
        ),
        ("precisions: [fp61]", r"did you mean 'fp16'"),
        ("kinds: [tensort]", r"recipe: kinds\.0: got 'tensort': .*did you mean 'tensorrt'"),
        ("tolerances: {fp61: {}}", r"recipe: tolerances\.fp61: got 'fp61': .*'fp32'"),
        (
            "num_replica: 2",
            r"recipe: num_replica: no such key, did you mean 'num_replicas'\?; expected accuracy, ",
        ),
        ("zzz: 2", r"recipe: zzz: no such key; expected accuracy, batching"),
        ("inputs: {ids: {hi: 2}}", r"inputs\.ids\.hi: no such key.*; expected high, low, max"),
        ("buckets: [{dims: {batch: {top: 2, min: 1, opt: 1, max: 1}}}]", r"expected max, min, opt"),
        (
            "batching: {dim: b}",
            r"batching\.dim: no such key.*; expected batch_dim, default_priority",
        ),
        ("ranking: {output: y, k: 1}", r"ranking\.k: no such key.*; expected min_overlap"),
        ("false", r"recipe: document: got False: .*; expected a mapping of accuracy, batching"),
        ("[]", r"recipe: document: got \[\]"),
        ("inputs: {ids: {min: 9, max: 1}}", r"inputs\.ids: .*expected min <= max, got 9 and 1"),
        ("inputs: {ids: {low: 1, high: 12, max: 10}}", r"below high is 11, outside of .* max 10"),
        ("inputs: {ids: {min: 1, low: -1, pad: 1}}", r"low is -1, outside of min 1"),
        ("inputs: {ids: {max: 9, pad: 10}}", r"pad is 10, outside of .* max 9"),
        ("inputs: {mask: {role: mask, max: 0}}", r"a mask's 1 is 1, outside of .* max 0"),
        ("num_replicas: 0", r"recipe: num_replicas: got 0: expected at least 1$"),
        # Ray counts in steps of that.
        ("gpu_share: 0.00001", r"recipe: gpu_share: got 1e-05: expected at least 0\.0001$"),
        ("batching: {max_delay_ms: -1}", r"recipe: batching\.max_delay_ms: got -1"),
        (
            "buckets: [{dims: {batch: {min: 4, opt: 2, max: 8}}}]",
            r"buckets\.0\.dims\.batch: .*expected min <= opt <= max, got 4, 2, 8",
        ),
        ("tolerances: {fp16: {rel_l2: 0, max_abs: 1, cosine_distance: 1}}", r"rel_l2: got 0"),
        ("num_replicas: many", r"num_replicas: got 'many': expected auto or a whole number$"),
        ("num_replicas: 1.5", r"num_replicas: got 1\.5: expected a whole number$"),
        ("batching: {batch_dim: [b]}", r"batch_dim: got \['b'\]: expected text$"),
        ("precisions: bf16", r"got 'bf16': expected auto or a list, such as \[fp32, bf16\]$"),
        (
            "{accuracy: exact, precisions: [fp32, bf16]}",
            r"accuracy: got 'exact': only fp32 is that close, and precisions lists fp32, bf16;",
        ),
        ("accuracy: ranking", r"accuracy: got 'ranking': it needs an order to compare; .* top_k"),
        ("accuracy: exat", r"accuracy: got 'exat': .*did you mean 'exact'"),
        ("kinds: onnxruntime", r"kinds: got 'onnxruntime': expected a list$"),
        ("inputs: [ids]", r"inputs: got \['ids'\]: expected a mapping$"),
        ("must_beat_fallback: perhaps", r"got 'perhaps': expected true or false$"),
        ("ranking: {top_k: 1}", r"ranking\.output: got nothing: expected a value$"),
        ("just text", r"recipe: document: got 'just text'"),
        ("[1, 2]", r"recipe: document: got \[1, 2\]"),
        ("a: [1", r"recipe: .*line 1"),
        (
            "a: !!python/object/apply:os.getcwd []",
            r"line 1, column 4: .*getcwd .*wanted a plain value",
        ),
    ],
)
def test_a_wrong_value_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidRecipeError, match=f"(?s){message}") as refused:
        Recipe.from_yaml(text)
    # pydantic's words are for programmers.
    assert not any(words in str(refused.value) for words in ("Input should", "Value error"))


def test_limits_of_values_hold_what_is_drawn() -> None:
    limited = Recipe.from_yaml("inputs: {ids: {low: 2, high: 11, min: 0, max: 10, pad: 1}}")
    assert (limited.inputs["ids"].min, limited.inputs["ids"].max) == (0, 10)


def test_limits_of_values_say_nothing_of_proofs() -> None:
    """So engines that were proven before a limit was given go on serving."""
    free = Recipe.from_yaml("inputs: {ids: {low: 2, high: 11}}")
    limited = Recipe.from_yaml("inputs: {ids: {low: 2, high: 11, min: 0, max: 10}}")
    drawn = Recipe.from_yaml("inputs: {ids: {low: 2, high: 10}}")
    terms = [proof_terms(recipe, Precision.FP32, None) for recipe in (free, limited, drawn)]
    assert terms[0] == terms[1] != terms[2]


def test_limits_that_bound_what_is_drawn_are_part_of_a_proofs_terms() -> None:
    """An engine that was proven with ten ids alone serves no version that takes them all."""
    texts = ("inputs: {ids: {}}", "inputs: {ids: {min: 0, max: 9}}", "inputs: {ids: {max: 9}}")
    terms = {proof_terms(Recipe.from_yaml(text), Precision.FP32, None) for text in texts}
    assert len(terms) == 3
    # As it was before limits existed: published engines keep their keys.
    asked = {"inputs": {"x": {"role": "values", "low": 0.0, "high": None, "pad": 0.0}}}
    asked |= {
        "outputs": {},
        "ranking": None,
        "tolerance": None,
        "batch_dim": "batch",
        "samples": "",
    }
    before = hashlib.sha256(canonical_json(asked)).hexdigest()
    assert proof_terms(Recipe.from_yaml("inputs: {x: {}}"), Precision.FP32, None) == before


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 1, 1), (1, 4, 8), (8, 8, 8)])
def test_a_range_is_ordered(sizes: tuple[int, int, int]) -> None:
    smallest, usual, largest = sizes
    assert DimRange(min=smallest, opt=usual, max=largest).opt == usual


@pytest.mark.parametrize("sizes", [(-1, 1, 1), (0, 0, 1), (2, 1, 4), (1, 5, 4), (4, 2, 1)])
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


def test_strings_to_draw_are_part_of_what_a_proof_means() -> None:
    plain = Recipe(inputs={"words": InputRecipe()})
    named = Recipe.from_yaml("inputs: {words: {values: ['', Grüße]}}")
    assert named.inputs["words"].strings == ("", "Grüße")
    assert plain.inputs["words"].strings[0] == ""
    terms = [proof_terms(each, Precision.FP32, None) for each in (plain, named)]
    assert terms[0] != terms[1]
    # Of older recipes they are digests without it.
    assert "values" not in plain.model_dump(mode="json")["inputs"]["words"]
    for text in ("inputs: {words: {values: []}}", "inputs: {words: {values: [1]}}"):
        with pytest.raises(InvalidRecipeError, match=r"inputs\.words\.values"):
            Recipe.from_yaml(text)


def test_a_list_of_accepted_faults_is_meant_for_each_precision() -> None:
    """As stored recipes of older releases have it: their models stay readable."""
    stored = Recipe.from_json(b'{"outputs": {"y": {"accept_blind": ["2 % off"]}}}')
    assert stored.outputs["y"].accept_blind == dict.fromkeys(Precision, ("2 % off",))
    assert Recipe.from_json(stored.canonical_json()) == stored
