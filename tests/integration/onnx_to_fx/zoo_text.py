"""Text and speech: small models of public architectures, with seeded weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from tests.integration.onnx_to_fx.zoo_entry import Entry, export_by_tracing

_SMALL = {"vocab_size": 1000, "num_attention_heads": 4, "max_position_embeddings": 64}
_LIMITS = {"batch": DimLimits(min=1, max=64), "seq": DimLimits(min=1, max=64)}
_SIZES = ({"batch": 1, "seq": 5}, {"batch": 4, "seq": 33}, {"batch": 2, "seq": 64})


class _Picked(nn.Module):
    """One tensor of what a model of texts gives, without the dataclass around it."""

    def __init__(self, model: nn.Module, pick: str) -> None:
        super().__init__()
        self.model, self.pick = model, pick

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None = None
    ) -> torch.Tensor:
        given = {} if types is None else {"token_type_ids": types}
        output = self.model(input_ids=ids, attention_mask=mask, **given)
        picked: torch.Tensor = getattr(output, self.pick)
        return picked


def _text_model(model: nn.Module, pick: str, *, has_types: bool = False) -> Entry:
    ids = torch.randint(5, 1000, (3, 17))
    # Rows get shorter.
    mask = (torch.arange(17) < torch.tensor([[17], [9], [4]])).to(torch.int64)
    inputs = {"ids": ids, "mask": mask}
    if has_types:
        inputs["types"] = (torch.arange(17) >= 8).to(torch.int64).repeat(3, 1)
    source = PyTorchModel(
        module=_Picked(model, pick).eval(),
        example_inputs=inputs,
        dynamic_dims={name: {0: "batch", 1: "seq"} for name in inputs},
        dim_limits=_LIMITS,
        output_names=("y",),
    )
    return Entry(source, _SIZES)


def _bert_config(**more: Any) -> transformers.BertConfig:
    return transformers.BertConfig(
        **_SMALL, hidden_size=64, num_hidden_layers=2, intermediate_size=128, **more
    )


def bert() -> Entry:
    """BERT."""
    return _text_model(transformers.BertModel(_bert_config()), "last_hidden_state")


def cross_encoder() -> Entry:
    """BERT that scores a pair of texts; token types tell them apart."""
    model = transformers.BertForSequenceClassification(_bert_config(num_labels=1))
    return _text_model(model, "logits", has_types=True)


def distilbert() -> Entry:
    """DistilBERT."""
    config = transformers.DistilBertConfig(
        vocab_size=1000, max_position_embeddings=64, dim=64, n_layers=2, n_heads=4, hidden_dim=128
    )
    return _text_model(transformers.DistilBertModel(config), "last_hidden_state")


def deberta() -> Entry:
    """DeBERTa-v2, whose terms of distance are folded into weights."""
    config = transformers.DebertaV2Config(
        **_SMALL,
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=128,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=32,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    )
    return _text_model(transformers.DebertaV2Model(config), "last_hidden_state")


def t5_encoder() -> Entry:
    """T5's encoder, whose distances fall into buckets; torch.export fails on its attention."""
    config = transformers.T5Config(
        vocab_size=1000, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4
    )
    entry = _text_model(transformers.T5EncoderModel(config), "last_hidden_state")
    return replace(entry, export=export_by_tracing)


def mpnet() -> Entry:
    """MPNet, with T5's buckets."""
    config = transformers.MPNetConfig(
        vocab_size=1000,
        num_attention_heads=4,
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        max_position_embeddings=80,
    )
    return _text_model(transformers.MPNetModel(config), "last_hidden_state")


def llama_prefill() -> Entry:
    """Llama's first pass over a prompt: rotary positions, grouped heads, causal mask."""
    config = transformers.LlamaConfig(
        **_SMALL,
        hidden_size=64,
        num_hidden_layers=2,
        num_key_value_heads=2,
        intermediate_size=128,
        use_cache=False,
    )
    return _text_model(transformers.LlamaForCausalLM(config), "logits")


def clip_text() -> Entry:
    """CLIP's tower for texts."""
    config = transformers.CLIPTextConfig(
        **_SMALL,
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        projection_dim=32,
        eos_token_id=999,
    )
    return _text_model(transformers.CLIPTextModelWithProjection(config), "text_embeds")


def whisper_encoder() -> Entry:
    """Whisper's encoder, over log-mel spectra of one length."""
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        num_mel_bins=20,
        max_source_positions=50,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        vocab_size=100,
        pad_token_id=0,
    )
    encoder = transformers.WhisperModel(config).encoder.eval()
    source = PyTorchModel(
        module=_Spectra(encoder).eval(),
        example_inputs={"spectra": torch.randn(3, 20, 100)},
        dynamic_dims={"spectra": {0: "batch"}},
        dim_limits={"batch": _LIMITS["batch"]},
        output_names=("y",),
    )
    return Entry(source, ({"batch": 1}, {"batch": 5}))


class _Spectra(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, spectra: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(spectra).last_hidden_state
        return hidden


class _Tagger(nn.Module):
    """A label for every token, by a layer of LSTM and one of GRU, both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 32)
        self.lstm = nn.LSTM(32, 24, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(48, 16, batch_first=True, bidirectional=True)
        self.labels = nn.Linear(32, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(ids))
        hidden, _ = self.gru(hidden)
        labels: torch.Tensor = self.labels(hidden)
        return labels


def tagger() -> Entry:
    """A recurrent tagger; torch.export writes out the steps of one length, so the older way."""
    source = PyTorchModel(
        module=_Tagger().eval(),
        example_inputs={"ids": torch.randint(0, 1000, (3, 17))},
        dynamic_dims={"ids": {0: "batch", 1: "seq"}},
        dim_limits=_LIMITS,
        output_names=("y",),
    )
    return Entry(source, _SIZES, export_by_tracing)
