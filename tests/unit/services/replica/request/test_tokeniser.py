"""Texts to tensors: padded, cut by the rules of the tokenizer, or refused one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import Array
from services.contracts.model.text_recipe import TextRecipe
from services.replica.request.tokeniser import Tokeniser
from tests.unit.services.replica.text_models import (
    CLS,
    SEP,
    WORDS,
    A,
    B,
    token_model,
    write_tokenizer,
)


def texts(*rows: Any) -> Array:
    array: Array = np.array(rows, dtype=np.object_)
    return array


def made(
    tmp_path: Path,
    *rows: Any,
    length: int | str = "sequence",
    datatype: str = "INT64",
    has_specials: bool = True,
    direction: str = "right",
    **recipe: Any,
) -> dict[str, Array]:
    path = write_tokenizer(tmp_path, has_specials=has_specials, direction=direction)
    text = TextRecipe(tokenizer="tokenizer.json", **recipe)
    tokeniser = Tokeniser(path, token_model(text, length=length, datatype=datatype))
    (found,) = tokeniser.tensors_from_texts([texts(*rows)])
    if isinstance(found, InvalidRequestError):
        raise found
    return found


def test_texts_are_padded_to_the_longest(tmp_path: Path) -> None:
    found = made(tmp_path, "a", "a b z")
    unknown = WORDS["[UNK]"]
    assert found["input_ids"].tolist() == [[CLS, A, SEP, 0, 0], [CLS, A, B, unknown, SEP]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert found["token_type_ids"].tolist() == [[0] * 5] * 2
    assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}


def test_the_types_and_a_fixed_length_of_the_model_are_kept(tmp_path: Path) -> None:
    found = made(tmp_path, ["a"], length=6, datatype="INT32")
    assert found["input_ids"].tolist() == [[CLS, A, SEP, 0, 0, 0]]
    assert found["attention_mask"].dtype == np.int32


def test_both_of_a_pair_are_told_apart(tmp_path: Path) -> None:
    found = made(tmp_path, ["a", "b b"], ["a", ""], pairs=True)
    assert found["input_ids"].tolist() == [[CLS, A, SEP, B, B, SEP], [CLS, A, SEP, SEP, 0, 0]]
    assert found["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("recipe", "direction", "wanted"),
    [
        ({}, "right", "abcdef"),
        ({"max_tokens": 4}, "right", "ab"),
        ({"max_tokens": 4}, "left", "ij"),
        ({"max_tokens": 99}, "right", "abcdef"),
    ],
)
def test_long_texts_are_cut_at_the_least_bound(
    tmp_path: Path, recipe: dict[str, Any], direction: str, wanted: str
) -> None:
    found = made(tmp_path, "a b c d e f g h i j", direction=direction, **recipe)
    assert found["input_ids"].tolist() == [[CLS, *(WORDS[each] for each in wanted), SEP]]


def test_the_longer_of_a_pair_is_cut_first(tmp_path: Path) -> None:
    found = made(tmp_path, ["a", "b c d e f g h i j"], pairs=True)
    ids = found["input_ids"].tolist()[0]
    assert ids[:3] == [CLS, A, SEP]
    assert len(ids) == 8


def test_what_is_cut_away_costs_nothing(tmp_path: Path) -> None:
    million = " a" * 1_000_000
    found = made(tmp_path, million)
    assert found["input_ids"].shape == (1, 8)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a b c d e f g", "'m': expected at most 8 tokens, got 9 in text 0"),
        ("a" * 600, "expected at most 8 tokens, got 600 characters"),
    ],
)
def test_long_texts_are_refused_where_the_recipe_says_so(
    tmp_path: Path, row: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        made(tmp_path, row, truncate=False)


@pytest.mark.parametrize("text", ["", "  "])
def test_a_text_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    assert made(tmp_path, text)["input_ids"].tolist() == [[CLS, SEP]]
    with pytest.raises(InvalidRequestError, match="text 1 has no token"):
        made(tmp_path, "a", text, has_specials=False)


def test_of_several_requests_the_bad_one_fails_alone(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    text = TextRecipe(tokenizer="tokenizer.json", truncate=False)
    requests = [texts("a"), texts("a " * 9), texts("b")]
    found = Tokeniser(path, token_model(text)).tensors_from_texts(requests)
    assert [isinstance(each, InvalidRequestError) for each in found] == [False, True, False]
