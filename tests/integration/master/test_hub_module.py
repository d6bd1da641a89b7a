"""Folders without an ONNX file: what transformers loads of each, and the master that it becomes."""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, normalizers

from compiler_worker.master.hub.folder import read_hub_folder
from compiler_worker.master.hub.module import load_module
from compiler_worker.master.opened import MODEL_FILE, open_master
from services.contracts.errors import InvalidModelError
from services.contracts.model.label_scores import LabelScores
from tests.hub_folders import ANIMALS, HUB_FOLDERS, MOODS, SIDE, write_hub_folder

PICTURES = ("ViT", "ResNet", "ConvNeXt")
WITH_TYPES = ("MiniLM", "BGE", "cross-encoder")


@pytest.mark.parametrize("name", HUB_FOLDERS)
def test_inputs_and_dimensions_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    folder = write_hub_folder(name, tmp_path)
    model = load_module(folder)
    if name in PICTURES:
        (pixels,) = model.example_inputs.values()
        assert pixels.shape[1:] == (3, SIDE, SIDE)
        assert (set(model.example_inputs), set(model.dim_limits)) == ({"pixel_values"}, {"batch"})
    else:
        types = {"token_type_ids"} if name in WITH_TYPES else set()
        assert set(model.example_inputs) == {"input_ids", "attention_mask"} | types
        is_embedder = (folder / "modules.json").exists()
        assert model.dim_limits["sequence"].max == (32 if is_embedder else 64)
    found = read_hub_folder(folder)
    assert found
    labels = {"DistilBERT": MOODS, "DeBERTa-v2": MOODS} | dict.fromkeys(PICTURES, ANIMALS)
    assert found.labels == tuple(labels.get(name, {}).values())
    is_multiple = name == "DeBERTa-v2"
    assert (found.label_scores is LabelScores.SIGMOID) == is_multiple


# The others export by the same code: what differs is transformers' own.
@pytest.mark.parametrize(
    "name",
    [
        "ResNet",
        *(pytest.param(each, marks=pytest.mark.slow) for each in HUB_FOLDERS if each != "ResNet"),
    ],
)
def test_a_master_answers_as_transformers_does(name: str, tmp_path: Path) -> None:
    folder = write_hub_folder(name, tmp_path / "folder")
    found = read_hub_folder(folder)
    assert found
    opened = open_master(found.source, tmp_path / "master", lambda _: None)
    session = onnxruntime.InferenceSession(str(opened.files[MODEL_FILE]))
    model = getattr(
        transformers, json.loads((folder / "config.json").read_text())["architectures"][0]
    )
    inputs = _inputs(name, [spec.name for spec in opened.inputs])
    (answer,) = session.run(None, {key: value.numpy() for key, value in inputs.items()})
    with torch.inference_mode():
        wanted = model.from_pretrained(str(folder))(**inputs)[0]
    torch.testing.assert_close(torch.from_numpy(answer), wanted, rtol=1e-4, atol=1e-5)


def _inputs(name: str, names: list[str]) -> dict[str, Any]:
    """Of other sizes than those that it was exported with."""
    if name in PICTURES:
        return {"pixel_values": torch.randn(5, 3, SIDE, SIDE)}
    ids = torch.randint(5, 18, (2, 23))
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    types = (torch.arange(23) > 9).long().repeat(2, 1)
    ids = ids * mask
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {key: given[key] for key in names}


def test_weights_that_are_missing_are_not_drawn(tmp_path: Path) -> None:
    folder = write_hub_folder("DistilBERT", tmp_path)
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidModelError, match="no weights of classifier.weight found"):
        load_module(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architecture": "resnet50", "pretrained_cfg": {}}, "a model of timm found"),
        ({"model_type": "no-such"}, "transformers cannot load it"),
        (
            {"model_type": "bert", "auto_map": {"AutoModel": "theirs.Model"}, "vocab_size": 8},
            "transformers cannot load it",
        ),
    ],
)
def test_what_cannot_be_exported(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "theirs.py").write_text("raise SystemExit('their code ran')")
    with pytest.raises(InvalidModelError, match=words):
        load_module(tmp_path)


def test_a_model_of_sounds_is_told_what_is_taken(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    convolutions = {
        "conv_dim": [8],
        "conv_kernel": [3],
        "conv_stride": [2],
        "num_feat_extract_layers": 1,
    }
    config = transformers.Wav2Vec2Config(
        **sizes, **convolutions, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2
    )
    transformers.Wav2Vec2Model(config).save_pretrained(str(tmp_path))
    with pytest.raises(InvalidModelError, match="takes input_values, input_ids or pixel_values"):
        load_module(tmp_path)


@pytest.mark.parametrize("head", ["ForQuestionAnswering", "ForImageClassificationWithTeacher"])
def test_a_head_that_an_export_would_leave_out_is_refused(head: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [f"Bert{head}"]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidModelError, match=f"Bert{head} found; exported are encoders and"):
        read_hub_folder(tmp_path)
    # Hidden states are all that an embedder takes of it.
    (tmp_path / "modules.json").write_text("[]")
    assert read_hub_folder(tmp_path)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "RoFormerModel"])
def test_an_encoder_that_has_no_head_of_use_is_taken(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert read_hub_folder(tmp_path)


def test_texts_that_are_to_be_lowered_need_a_tokenizer_that_does(tmp_path: Path) -> None:
    folder = write_hub_folder("MiniLM", tmp_path)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(path))
    with pytest.raises(InvalidModelError, match="does not lower them: save it with"):
        read_hub_folder(folder)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.save(str(path))
    assert read_hub_folder(folder)
