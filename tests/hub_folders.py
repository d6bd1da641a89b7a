"""Folders as Hugging Face's hub lays them out: ten models with seeded weights, as safetensors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "a",
    "cat",
    "dog",
    "sits",
    "runs",
    "on",
    "the",
    "mat",
    "what",
    "is",
    "query",
    "passage",
    ":",
)
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_VOCABULARY = {word: at for at, word in enumerate((*_SPECIAL, *WORDS))}
_SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
SIDE = 32
MOODS = {0: "negative", 1: "neutral", 2: "positive"}
ANIMALS = {0: "cat", 1: "dog", 2: "owl", 3: "eel"}


def _labels(names: Mapping[int, str]) -> dict[str, Any]:
    return {"id2label": dict(names), "label2id": {name: at for at, name in names.items()}}


def write_tokenizer(folder: Path) -> None:
    """Of a few words, as BERT's is."""
    tokenizer = Tokenizer(models.WordLevel(_VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
    ).save_pretrained(str(folder))


def _write(folder: Path, model: Any) -> Path:
    """With numbers large enough that answers differ by the text, whatever the architecture."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
        elif "bias" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.eval().save_pretrained(str(folder))
    return folder


def _text(folder: Path, model: Any) -> Path:
    write_tokenizer(_write(folder, model))
    return folder


def _embedder(folder: Path, model: Any, pooling: str) -> Path:
    """As sentence-transformers saves one, with vectors of length 1."""
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{kind}" if at else "", "type": kind_of(kind)}
        for at, kind in enumerate(kinds)
    ]
    _text(folder, model)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 32, "do_lower_case": false}'
    )
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{each}": each == pooling for each in ("cls_token", "mean_tokens")}
    config = {"word_embedding_dimension": _SMALL["hidden_size"]} | modes
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


def kind_of(module: str) -> str:
    return f"sentence_transformers.models.{module}"


def minilm(folder: Path) -> Path:
    """BERT whose tokens' mean is the vector."""
    return _embedder(
        folder, transformers.BertModel(transformers.BertConfig(**_SMALL)), "mean_tokens"
    )


def bge(folder: Path) -> Path:
    """BERT whose first token is the vector."""
    return _embedder(folder, transformers.BertModel(transformers.BertConfig(**_SMALL)), "cls_token")


def e5(folder: Path) -> Path:
    """XLM-RoBERTa, the multilingual E5; its prompts are the client's to put."""
    config = transformers.XLMRobertaConfig(**_SMALL | {"type_vocab_size": 1, "pad_token_id": 0})
    _embedder(folder, transformers.XLMRobertaModel(config), "mean_tokens")
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def cross_encoder(folder: Path) -> Path:
    """BERT that scores a query and a document."""
    config = transformers.BertConfig(**_SMALL, num_labels=1)
    return _text(folder, transformers.BertForSequenceClassification(config))


def distilbert(folder: Path) -> Path:
    """A classifier of moods."""
    config = transformers.DistilBertConfig(
        vocab_size=64,
        dim=64,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        max_position_embeddings=64,
        **_labels(MOODS),
    )
    return _text(folder, transformers.DistilBertForSequenceClassification(config))


def modernbert(folder: Path) -> Path:
    """ModernBERT, with its rotary positions, local and global attention."""
    ids = dict(zip(("pad", "cls", "sep", "bos", "eos"), (0, 2, 3, 2, 3), strict=True))
    config = transformers.ModernBertConfig(
        **_SMALL, **{f"{name}_token_id": value for name, value in ids.items()}
    )
    return _embedder(folder, transformers.ModernBertModel(config), "mean_tokens")


def deberta(folder: Path) -> Path:
    """A classifier of several labels at once, by DeBERTa-v2."""
    config = transformers.DebertaV2Config(
        **_SMALL,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        type_vocab_size=0,
        problem_type="multi_label_classification",
        **_labels(MOODS),
    )
    return _text(folder, transformers.DebertaV2ForSequenceClassification(config))


def vit(folder: Path) -> Path:
    """A vision transformer that tells animals apart."""
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=SIDE,
        patch_size=8,
        **_labels(ANIMALS),
    )
    return _write(folder, transformers.ViTForImageClassification(config))


def resnet(folder: Path) -> Path:
    """ResNet, whose configuration has no size of pictures: its preprocessor's has."""
    config = transformers.ResNetConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 96, 128], embedding_size=32, **_labels(ANIMALS)
    )
    _write(folder, transformers.ResNetForImageClassification(config))
    processor = {"crop_size": {"height": SIDE, "width": SIDE}, "size": {"shortest_edge": 36}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def convnext(folder: Path) -> Path:
    """ConvNeXt."""
    config = transformers.ConvNextConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 96, 128], image_size=SIDE, **_labels(ANIMALS)
    )
    return _write(folder, transformers.ConvNextForImageClassification(config))


HUB_FOLDERS: dict[str, Callable[[Path], Path]] = {
    "MiniLM": minilm,
    "BGE": bge,
    "E5": e5,
    "cross-encoder": cross_encoder,
    "DistilBERT": distilbert,
    "ModernBERT": modernbert,
    "DeBERTa-v2": deberta,
    "ViT": vit,
    "ResNet": resnet,
    "ConvNeXt": convnext,
}


def write_hub_folder(name: str, folder: Path) -> Path:
    """One of them, with the same weights each time."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return HUB_FOLDERS[name](folder)
