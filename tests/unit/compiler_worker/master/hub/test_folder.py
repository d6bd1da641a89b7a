"""Folders of the hub's layout: what is taken of each, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from compiler_worker.master.hub.folder import read_hub_folder
from compiler_worker.master.source import TransformersFolder
from services.contracts.errors import InvalidModelError
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.pooling_choice import Pooling
from services.contracts.model.text_recipe import TextRecipe

ENCODER = {"architectures": ["BertModel"], "max_position_embeddings": 512}
CLASSIFIER = {"architectures": ["BertForSequenceClassification"]}
OF = "sentence_transformers.models."


def folder_of(folder: Path, files: dict[str, Any], model: str = "onnx/model.onnx") -> Path:
    for name, content in (
        {model: None, "tokenizer.json": {}, "config.json": ENCODER} | files
    ).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def modules(*kinds: str) -> list[dict[str, str]]:
    return [{"type": OF + kind, "path": f"{at}_{kind}"} for at, kind in enumerate(kinds)]


def test_an_embedder(tmp_path: Path) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
        },
        "sentence_bert_config.json": {"max_seq_length": 256},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": ""}},
    }
    found = read_hub_folder(folder_of(tmp_path, files))
    assert found is not None
    assert found.model == tmp_path / "onnx" / "model.onnx"
    assert found.text == TextRecipe(
        tokenizer="tokenizer.json", pooling=Pooling.CLS, normalize=True, max_tokens=256
    )
    took, otherwise, prompts = found.words
    assert "onnx/model.onnx; tokenizer.json; at most 256 tokens; pooling cls; length 1" in took
    assert f"smelt models add NAME {tmp_path}/onnx/model.onnx" in otherwise
    assert '"query: "' in prompts


@pytest.mark.parametrize(("word", "pooling"), [("mean", Pooling.MEAN), ("lasttoken", Pooling.LAST)])
def test_pooling_in_a_word(tmp_path: Path, word: str, pooling: Pooling) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode": word, "include_prompt": True},
    }
    found = read_hub_folder(folder_of(tmp_path, files, "model.onnx"))
    assert found
    assert found.text
    assert (found.text.pooling, found.text.normalize, found.text.max_tokens) == (
        pooling,
        False,
        512,
    )


@pytest.mark.parametrize(
    ("config", "is_pair", "labels"),
    [
        ({"id2label": {"0": "LABEL_0"}}, True, ()),
        # As transformers saves what it trained for one number.
        ({"id2label": {"0": "score"}, "problem_type": "regression"}, False, ("score",)),
        (
            {"id2label": {"0": "a"}, "problem_type": "regression", "sentence_transformers": {}},
            True,
            (),
        ),
        ({"id2label": {"1": "POSITIVE", "0": "NEGATIVE"}}, False, ("NEGATIVE", "POSITIVE")),
        ({"id2label": {"0": "a", "1": "b"}, "sentence_transformers": {}}, True, ("a", "b")),
    ],
)
def test_rerankers_and_classifiers(
    tmp_path: Path, config: dict[str, Any], is_pair: bool, labels: tuple[str, ...]
) -> None:
    given = config | {"architectures": ["BertForSequenceClassification"]}
    files = {"config.json": given, "tokenizer_config.json": {"model_max_length": 1e30}}
    found = read_hub_folder(folder_of(tmp_path, files))
    assert found is not None
    assert found.text == TextRecipe(tokenizer="tokenizer.json", pairs=is_pair)
    assert found.labels == labels


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modules.json": modules("Transformer", "Pooling", "Dense")}, "modules.json has Dense"),
        (
            {"modules.json": modules("Transformer", "Pooling", "Pooling")},
            "modules.json has Transformer, Pooling, Pooling; wanted are Transformer, Pooling, Nor",
        ),
        (
            {
                "modules.json": modules("Transformer", "Pooling"),
                "1_Pooling/config.json": {"pooling_mode_max_tokens": True},
            },
            "pooling pooling_mode_max_tokens; known is one of mean, cls, last",
        ),
        (
            {
                "modules.json": modules("Transformer", "Pooling"),
                "1_Pooling/config.json": {
                    "pooling_mode_cls_token": True,
                    "pooling_mode_mean_tokens": True,
                },
            },
            "pooling pooling_mode_cls_token, pooling_mode_mean_tokens; known",
        ),
        ({"modules.json": {}}, "modules.json cannot be read: expected list, got dict"),
        ({"config.json": []}, "config.json cannot be read: expected dict, got list"),
        ({"config.json": {"architectures": 5}}, "json files are not as transformers"),
        ({"config.json": CLASSIFIER | {"id2label": 5}}, "json files are not as transformers"),
        ({"modules.json": [5]}, "json files are not as transformers"),
        ({"config_sentence_transformers.json": {"prompts": ["a"]}}, "not as transformers"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidModelError, match=words):
        read_hub_folder(folder_of(tmp_path, files))


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (folder_of(tmp_path, {}) / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(InvalidModelError, match=r"tokenizer_config\.json cannot be read"):
        read_hub_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ({"do_lower_case": False, "tokenizer_class": "BertTokenizer"}, True),
        ({"do_lower_case": False}, True),
        ({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}, False),
        ({"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({}, False),
    ],
)
def test_a_tokenizer_that_transformers_would_change_is_refused(
    tmp_path: Path, config: dict[str, Any], is_refused: bool
) -> None:
    tokenizer = {"normalizer": {"type": "BertNormalizer", "lowercase": True}}
    folder_of(tmp_path, {"tokenizer.json": tokenizer, "tokenizer_config.json": config})
    if not is_refused:
        assert read_hub_folder(tmp_path)
        return
    with pytest.raises(InvalidModelError, match="do_lower_case is False in tokenizer_config"):
        read_hub_folder(tmp_path)


@pytest.mark.parametrize("bound", [True, 0.5, "256"])
def test_what_is_no_number_of_tokens_is_no_bound(tmp_path: Path, bound: object) -> None:
    files = {"sentence_bert_config.json": {"max_seq_length": bound}}
    found = read_hub_folder(folder_of(tmp_path, files))
    assert found
    assert found.text
    assert found.text.max_tokens == 512


def test_a_pooling_that_leaves_prompts_out_is_told(tmp_path: Path) -> None:
    files = {
        "modules.json": modules("Transformer", "Pooling"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": False},
    }
    found = read_hub_folder(folder_of(tmp_path, files))
    assert found
    assert "leaves the tokens of a prompt out (include_prompt: false)" in found.words[-1]


@pytest.mark.parametrize("missing", ["config.json", "onnx/model.onnx"])
def test_other_folders_are_none(tmp_path: Path, missing: str) -> None:
    (folder_of(tmp_path, {}) / missing).unlink()
    assert read_hub_folder(tmp_path) is None


def test_safetensors_are_exported_where_there_is_no_onnx_file(tmp_path: Path) -> None:
    folder_of(tmp_path, {"model-00001-of-00002.safetensors": None})
    (tmp_path / "onnx" / "model.onnx").unlink()
    found = read_hub_folder(tmp_path, "hf://org/model@c0ffee")
    assert found
    assert found.source == TransformersFolder(folder=tmp_path)
    assert found.words[0].startswith("hf://org/model@c0ffee: took model*.safetensors, exported by")
    assert not any("for the file alone" in each for each in found.words)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_models_that_write_text_are_refused_unless_they_are_pooled(
    tmp_path: Path, name: str
) -> None:
    folder_of(tmp_path, {"config.json": {"architectures": [name]}})
    with pytest.raises(InvalidModelError, match=f"{name} found, which writes text token by token"):
        read_hub_folder(tmp_path)
    # The file alone, and embedders made of such models.
    assert read_hub_folder(tmp_path, file="onnx/model.onnx")
    folder_of(tmp_path, {"config.json": {"architectures": [name]}, "modules.json": []})
    assert read_hub_folder(tmp_path)


@pytest.mark.parametrize(
    ("problem", "scores"),
    [
        ("multi_label_classification", LabelScores.SIGMOID),
        ("single_label_classification", LabelScores.SOFTMAX),
        ("regression", LabelScores.NONE),
        (None, LabelScores.SOFTMAX),
    ],
)
def test_labels_of_a_classifier_of_two_without_names(
    tmp_path: Path, problem: str | None, scores: LabelScores
) -> None:
    config = CLASSIFIER | {"problem_type": problem}
    found = read_hub_folder(folder_of(tmp_path, {"config.json": config}))
    assert found
    assert (found.labels, found.label_scores) == (("LABEL_0", "LABEL_1"), scores)
    assert f"labels LABEL_0, LABEL_1 (scores: {scores})" in found.words[0]
