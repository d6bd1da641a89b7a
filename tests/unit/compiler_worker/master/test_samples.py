"""Samples of strings: as text in a file, and as the words that proofs draw."""

from pathlib import Path

import numpy as np
import pytest

from compiler_worker.master.samples import (
    MAX_WORD_CHARACTERS,
    MAX_WORDS,
    check_samples,
    read_samples,
    recipe_with_words,
    write_samples,
)
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import InputRecipe, Recipe

WORDS = TensorSpec(name="words", datatype="BYTES", shape=("batch", 2))
IDS = TensorSpec(name="ids", datatype="INT64", shape=("batch",))


@pytest.mark.parametrize(
    "words", [np.array([["a", "Ж"], ["", "a"]]), np.array([[b"a", "Ж".encode()], [b"", b"a"]])]
)
def test_text_of_a_file_is_strings(tmp_path: Path, words: np.ndarray) -> None:
    np.savez(tmp_path / "samples.npz", words=words, ids=np.arange(2))
    samples = read_samples(tmp_path / "samples.npz")
    check_samples(samples, (WORDS, IDS))
    assert samples["words"].tolist() == [["a", "Ж"], ["", "a"]]
    again = read_samples(write_samples(samples, tmp_path))
    assert again["words"].tolist() == samples["words"].tolist()
    assert again["ids"].dtype == np.int64


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", words=np.array([b"\xe9"]))
    with pytest.raises(InvalidModelError, match="element 0: expected UTF-8"):
        read_samples(tmp_path / "samples.npz")


def test_samples_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    with pytest.raises(InvalidModelError, match=f"samples {path}: No such file or directory; exp"):
        read_samples(path)


def test_proofs_draw_the_words_of_samples_where_the_recipe_has_none() -> None:
    long = "x" * (MAX_WORD_CHARACTERS + 1)
    samples = {
        "words": np.array([["b", "a"], ["b", long]], dtype=object),
        "ids": np.arange(2),
    }
    found = recipe_with_words(Recipe(), samples, (WORDS, IDS))
    assert found.inputs == {"words": InputRecipe(values=("b", "a"))}
    named = Recipe(inputs={"words": InputRecipe(values=("c",))})
    assert recipe_with_words(named, samples, (WORDS, IDS)) == named
    assert recipe_with_words(Recipe(), None, (WORDS, IDS)) == Recipe()
    many = {"words": np.array([[str(n), "a"] for n in range(MAX_WORDS)], dtype=object)}
    values = recipe_with_words(Recipe(), many, (WORDS,)).inputs["words"].values
    assert values is not None
    assert len(values) == MAX_WORDS
    only_long = {"words": np.array([[long, long]], dtype=object)}
    assert recipe_with_words(Recipe(), only_long, (WORDS,)).inputs["words"].values is None


@pytest.mark.parametrize(
    ("rows", "words"),
    [(np.zeros((0, 3), np.float32), "no rows found"), (np.full((4, 3), np.nan), "'x' holds NaN")],
)
def test_samples_that_show_nothing_are_refused(rows: np.ndarray, words: str) -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=("batch", 3))
    with pytest.raises(InvalidModelError, match=words):
        check_samples({"x": rows.astype(np.float32)}, (spec,))
    some = np.array([[1.0, np.nan, np.inf]], np.float32)  # missing values may mean something
    check_samples({"x": some}, (spec,))
