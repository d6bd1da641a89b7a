"""The PyTorch models of the GPU benchmark, with seeded weights and inputs.

Legend: B = batch, T = 128 tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe

NUM_TOKENS = 128
_NUM_WORDS = 30000


@dataclass(frozen=True, kw_only=True)
class Source:
    """One model.

    Attributes:
        make: the module, the same in every process.
        inputs: arrays by name for a batch size.
        batches: sizes that are measured, a bucket each.
        flops: floating point operations of one row.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Array]]
    recipe_inputs: dict[str, InputRecipe]
    batches: tuple[int, ...]
    flops: float

    @property
    def recipe(self) -> Recipe:
        """fp16 engines of kind inductor, one bucket for each batch size."""
        sizes = [DimRange(min=1, opt=batch, max=batch) for batch in self.batches]
        return Recipe(
            kinds=(EngineKind.INDUCTOR,),
            precisions=(Precision.FP16,),
            inputs=self.recipe_inputs,
            buckets=tuple(Bucket(dims={"batch": size}) for size in sizes),
        )


class _Embedding(nn.Module):
    """An encoder, the mean over valid tokens, length one."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(**sizes, attn_implementation="sdpa")
        self.encoder = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens_BTD = self.encoder(input_ids, attention_mask).last_hidden_state
        valid_BT1 = attention_mask.unsqueeze(-1).to(tokens_BTD.dtype)
        mean_BD = (tokens_BTD * valid_BT1).sum(1) / valid_BT1.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean_BD, dim=-1)


def _minilm() -> nn.Module:
    torch.manual_seed(0)
    return _Embedding(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ).eval()


def _bert_base() -> nn.Module:
    torch.manual_seed(0)
    return _Embedding().eval()


def _resnet50() -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # As they are after training: not the identity.
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.7, 1.3)
            nn.init.uniform_(module.weight, 0.3, 0.7)
            nn.init.normal_(module.bias, 0, 0.1)
    return model


def _tokens(batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    lengths = rng.integers(NUM_TOKENS // 8, NUM_TOKENS + 1, batch)
    lengths[0] = NUM_TOKENS
    mask_BT = (np.arange(NUM_TOKENS) < lengths[:, None]).astype(np.int64)
    ids_BT = rng.integers(5, _NUM_WORDS, (batch, NUM_TOKENS), dtype=np.int64)
    return {"input_ids": ids_BT, "attention_mask": mask_BT}


def _images(batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)}


def _encoder_flops(width: int, layers: int) -> float:
    """Products with weights (12 widths squared for each token and layer), and attention."""
    return layers * NUM_TOKENS * (2 * 12 * width**2 + 4 * NUM_TOKENS * width)


_TEXT = {
    "input_ids": InputRecipe(low=5, high=_NUM_WORDS),
    "attention_mask": InputRecipe(role=InputRole.MASK),
}
SOURCES = {
    "minilm": Source(
        make=_minilm,
        inputs=_tokens,
        recipe_inputs=_TEXT,
        batches=(1, 32),
        flops=_encoder_flops(384, 6),
    ),
    "bert-base": Source(
        make=_bert_base,
        inputs=_tokens,
        recipe_inputs=_TEXT,
        batches=(32,),
        flops=_encoder_flops(768, 12),
    ),
    "resnet50": Source(
        make=_resnet50,
        inputs=_images,
        recipe_inputs={"x": InputRecipe(low=-2, high=2)},
        batches=(1, 32),
        flops=8.18e9,
    ),
}
