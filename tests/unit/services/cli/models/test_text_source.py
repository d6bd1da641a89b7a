"""Tokenizer and pooling of options, recipe and folder; what is said of the inputs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compiler_worker.master.hub.folder import HubFolder
from compiler_worker.master.opened import OpenedMaster
from services.cli.models.asked_text import AskedText
from services.cli.models.text_source import TextSource, text_source
from services.contracts.errors import InvalidModelError, InvalidRecipeError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.pooling_choice import Pooling
from services.contracts.model.recipe import DimRange, InputRecipe, InputRole, Recipe
from services.contracts.model.text_recipe import TextRecipe
from tests.unit.services.replica.text_models import write_tokenizer

IDS = ("input_ids", "attention_mask")


def opened(inputs: Sequence[str] = IDS, output: str = "logits") -> OpenedMaster:
    return OpenedMaster(
        digest="d" * 64,
        files={},
        inputs=tuple(
            TensorSpec(name=name, datatype="INT64", shape=("rows", "words")) for name in inputs
        ),
        outputs=(TensorSpec(name=output, datatype="FP32", shape=("rows", 3)),),
        opset=20,
        num_parameters=1,
    )


def taken(
    folder: Path,
    recipe: Recipe | None = None,
    asked: AskedText | None = None,
    hub: HubFolder | None = None,
    **model: Any,
) -> TextSource:
    return text_source(
        opened(**model), recipe or Recipe(), folder, asked or AskedText(), hub, folder / "work"
    )


def hub_of(folder: Path, **text: Any) -> HubFolder:
    recipe = TextRecipe(tokenizer=write_tokenizer(folder).name, **text)
    return HubFolder(
        folder=folder, model=folder / "m.onnx", text=recipe, labels=("a", "b"), words=("took it",)
    )


def test_without_a_tokenizer_nothing_changes(tmp_path: Path) -> None:
    found = taken(tmp_path)
    assert (found.opened, found.recipe) == (opened(), Recipe())
    assert found.tokenizer is None


def test_an_option_says_how_inputs_are_padded_where_the_recipe_does_not(tmp_path: Path) -> None:
    own = InputRecipe(low=1, high=9, pad=5)
    path = write_tokenizer(tmp_path)
    found = taken(tmp_path, Recipe(inputs={"input_ids": own}), AskedText(tokenizer=path))
    mask = InputRecipe(role=InputRole.MASK)
    assert found.recipe.inputs == {"input_ids": own, "attention_mask": mask}
    assert found.recipe.text == TextRecipe(tokenizer="tokenizer.json")
    assert found.tokenizer == path


@pytest.mark.parametrize(
    ("contents", "pad"), [(["<s>", "<pad>"], 1), (["<|padded_x|>", "[PAD]"], 1), (["padding"], 0)]
)
def test_ids_are_padded_with_the_token_that_says_so(
    tmp_path: Path, contents: list[str], pad: int
) -> None:
    path = write_tokenizer(tmp_path)
    rules = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [{"id": number, "content": each} | rules for number, each in enumerate(contents)]
    changed = json.loads(path.read_text()) | {"padding": None, "added_tokens": added}
    path.write_text(json.dumps(changed))
    found = taken(tmp_path, asked=AskedText(tokenizer=path))
    assert found.recipe.inputs["input_ids"].pad == pad


def test_a_recipes_file_lies_beside_it_and_its_bound_reaches(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    recipe = Recipe(text=TextRecipe(tokenizer="tokenizer.json", max_tokens=512))
    found = taken(tmp_path, recipe)
    (bucket,) = found.recipe.buckets
    assert bucket.dims["words"] == DimRange(min=1, opt=64, max=512)
    assert bucket.dims["rows"].max == 8


def test_a_folder_gives_labels_and_options_come_before_it(tmp_path: Path) -> None:
    found = taken(tmp_path, hub=hub_of(tmp_path, pairs=True))
    assert found.recipe.labels == ("a", "b")
    assert found.recipe.text == TextRecipe(tokenizer="tokenizer.json", pairs=True)
    assert found.words == ("took it",)
    other = tmp_path / "other"
    other.mkdir()
    asked = AskedText(tokenizer=write_tokenizer(other))
    assert taken(tmp_path, None, asked, hub_of(tmp_path)).tokenizer == other / "tokenizer.json"


def test_an_embedding_of_the_models_own_is_not_pooled_again(tmp_path: Path) -> None:
    hub = hub_of(tmp_path, pooling=Pooling.MEAN, normalize=True)
    found = taken(tmp_path, hub=hub, output="sentence_embedding")
    assert found.recipe.text == TextRecipe(tokenizer="tokenizer.json")
    assert found.words == ("took it", "no pooling is appended: the model has sentence_embedding")


@pytest.mark.parametrize("inputs", [("text",), (*IDS, "pixel_values")])
def test_inputs_that_no_tokenizer_makes(tmp_path: Path, inputs: tuple[str, ...]) -> None:
    found = taken(tmp_path, hub=hub_of(tmp_path), inputs=inputs)
    assert found.recipe.text is None
    assert found.words[1].startswith("text is not accepted: ")
    with pytest.raises(InvalidModelError, match="text is not accepted: "):
        taken(tmp_path, None, AskedText(tokenizer=tmp_path / "tokenizer.json"), inputs=inputs)


def test_pooling_goes_with_a_tokenizer_and_length_1_with_pooling(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecipeError, match="go with --tokenizer"):
        taken(tmp_path, None, AskedText(pooling=Pooling.CLS))
    asked = AskedText(tokenizer=write_tokenizer(tmp_path), normalize=True)
    with pytest.raises(InvalidRecipeError, match="normalize is of an embedding that pooling makes"):
        taken(tmp_path, None, asked)


@pytest.mark.parametrize(("is_pair", "num_special"), [(False, 2), (True, 3)])
def test_a_bound_that_leaves_no_room_for_text_is_refused(
    tmp_path: Path, is_pair: bool, num_special: int
) -> None:
    least = num_special + (2 if is_pair else 1)
    words = rf"at most {least - 1} tokens found, .* {num_special} special ones; wanted are {least}"
    with pytest.raises(InvalidRecipeError, match=words):
        taken(tmp_path, hub=hub_of(tmp_path, pairs=is_pair, max_tokens=least - 1))
    assert taken(tmp_path, hub=hub_of(tmp_path, pairs=is_pair, max_tokens=least)).recipe.text
    # The file's own bound.
    path = tmp_path / "tokenizer.json"
    rule = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": rule}))
    with pytest.raises(InvalidRecipeError, match="at most 1 tokens found"):
        taken(tmp_path, None, AskedText(tokenizer=path))


@pytest.mark.parametrize("content", [None, "{}", "\0"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidModelError, match=r"cannot be read|is no tokenizer\.json"):
        taken(tmp_path, None, AskedText(tokenizer=path))
