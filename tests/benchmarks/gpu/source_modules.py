"""The PyTorch modules of the GPU benchmark: architectures of their libraries, seeded weights.

Legend: B = batch, T = tokens, D = width, C = classes.
"""

from typing import Any

import torch
import transformers
from torch import nn

NUM_WORDS = 30000
# Of a recommender's tables.
NUM_TABLES = 26
NUM_IDS = 50000
NUM_NUMBERS = 13
_WIDTH = 64


class _Embedding(nn.Module):
    """An encoder, the mean over valid tokens, length one."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        config = transformers.BertConfig(**sizes, attn_implementation="sdpa")
        self.encoder = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens_BTD = self.encoder(input_ids, attention_mask).last_hidden_state
        valid_BT1 = attention_mask.unsqueeze(-1).to(tokens_BTD.dtype)
        mean_BD = (tokens_BTD * valid_BT1).sum(1) / valid_BT1.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean_BD, dim=-1)


class _LastToken(nn.Module):
    """A decoder that embeds: the hidden state of the last token, length one; rows are full."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        tokens_BTD = self.decoder(input_ids, use_cache=False).last_hidden_state
        return nn.functional.normalize(tokens_BTD[:, -1], dim=-1)


class _Logits(nn.Module):
    """The logits of a classifier, without the dataclass around them."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits_BC: torch.Tensor = self.classifier(pixels).logits
        return logits_BC


class _Pair(nn.Module):
    """The score of a reranker."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits_B1: torch.Tensor = self.classifier(input_ids, attention_mask).logits
        return logits_B1


class _Recommender(nn.Module):
    """DLRM (Naumov et al., 2019): ids and numbers become vectors, whose products are ranked."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(NUM_IDS, _WIDTH) for _ in range(NUM_TABLES))
        self.dense = _layers(NUM_NUMBERS, 512, 256, _WIDTH)
        num_vectors = NUM_TABLES + 1
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.top = _layers(_WIDTH + num_pairs, 1024, 1024, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(num_vectors, num_vectors, -1))

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense_BD = self.dense(numbers)
        looked_up = [table(ids[:, index]) for index, table in enumerate(self.tables)]
        vectors_BVD = torch.stack([dense_BD, *looked_up], 1)
        products_BVV = vectors_BVD @ vectors_BVD.transpose(1, 2)
        pairs_BP = products_BVV[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dense_BD, pairs_BP], 1)))


def _layers(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for index in range(len(widths) - 1):
        parts += [nn.Linear(widths[index], widths[index + 1]), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def minilm() -> nn.Module:
    """Six layers of width 384."""
    return _seeded(
        lambda: _Embedding(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
    )


def bert_base() -> nn.Module:
    """Twelve layers of width 768."""
    return _seeded(_Embedding)


def bert_large() -> nn.Module:
    """Twenty-four layers of width 1024."""
    return _seeded(
        lambda: _Embedding(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
        )
    )


def reranker() -> nn.Module:
    """XLM-RoBERTa base with a score, its vocabulary cut to `NUM_WORDS`."""
    config = transformers.XLMRobertaConfig(
        vocab_size=NUM_WORDS, num_labels=1, max_position_embeddings=514, type_vocab_size=1
    )
    return _seeded(lambda: _Pair(transformers.XLMRobertaForSequenceClassification(config)))


def qwen3_embedder() -> nn.Module:
    """Eight of the layers of Qwen3-Embedding-0.6B, with grouped queries, rotary positions."""
    config = transformers.Qwen3Config(
        vocab_size=NUM_WORDS,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    )
    return _seeded(lambda: _LastToken(transformers.Qwen3Model(config)))


def resnet50() -> nn.Module:
    """Of torchvision."""
    import torchvision

    return _seeded(lambda: torchvision.models.resnet50(weights=None))


def vit_b16() -> nn.Module:
    """Of transformers, pictures of 224 x 224."""
    return _seeded(lambda: _Logits(transformers.ViTForImageClassification(_labelled("ViT"))))


def convnext_t() -> nn.Module:
    """Of transformers."""
    config = _labelled("ConvNext")
    return _seeded(lambda: _Logits(transformers.ConvNextForImageClassification(config)))


def efficientnet_b0() -> nn.Module:
    """Of transformers, with the widths and depths of B0."""
    config = _labelled(
        "EfficientNet",
        image_size=224,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        dropout_rate=0.2,
    )
    return _seeded(lambda: _Logits(transformers.EfficientNetForImageClassification(config)))


def dlrm() -> nn.Module:
    """26 tables, three layers for the numbers, five on top."""
    return _seeded(_Recommender)


def _labelled(name: str, **sizes: Any) -> Any:
    return getattr(transformers, f"{name}Config")(num_labels=1000, **sizes)


def _seeded(make: Any) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = make().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            # As they are after training: not the identity.
            nn.init.normal_(part.running_mean, 0, 0.1)
            nn.init.uniform_(part.running_var, 0.7, 1.3)
            nn.init.uniform_(part.weight, 0.3, 0.7)
            nn.init.normal_(part.bias, 0, 0.1)
    return module
