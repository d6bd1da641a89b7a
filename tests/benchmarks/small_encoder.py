"""A small text encoder with weights from a seed: what a busy machine builds within minutes."""

import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.batching import Batching
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe

_NUM_WORDS, _WIDTH, _HEADS = 1000, 128, 4


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(_WIDTH) for _ in range(2))
        self.projections = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.inner = torch.nn.Sequential(
            torch.nn.Linear(_WIDTH, 4 * _WIDTH),
            torch.nn.GELU(),
            torch.nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: float32 [B, T, 128]; returns the same shape."""
        *into, out = self.projections
        normed = self.norms[0](hidden)
        query, key, value = (
            each(normed).unflatten(2, (_HEADS, _WIDTH // _HEADS)).transpose(1, 2) for each in into
        )
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + out(attended.transpose(1, 2).flatten(2))
        return hidden + self.inner(self.norms[1](hidden))


class _Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(_NUM_WORDS, _WIDTH)
        self.layers = torch.nn.Sequential(*(_Layer() for _ in range(4)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: int64 [B, T]; returns float32 [B, 128]."""
        return self.layers(self.words(ids)).mean(1)


def small_encoder() -> PyTorchModel:
    """Four layers of width 128, one row of up to 32 words or 8 of up to 64."""
    return _encoder((1, 1, 16, 32), (8, 1, 64, 64))


def small_encoder_of_fixed_sizes() -> PyTorchModel:
    """The same with nothing to pad, as GPUs' engines pad what lies between a bucket's bounds."""
    return _encoder((1, 16, 16, 16), (1, 32, 32, 32), (8, 64, 64, 64))


def _encoder(*boxes: tuple[int, int, int, int]) -> PyTorchModel:
    """With a bucket for each of boxes: rows, then the least, usual and largest number of words."""
    torch.manual_seed(0)
    buckets = [
        {
            "batch": DimRange(min=rows, opt=rows, max=rows),
            "words": DimRange(min=least, opt=opt, max=top),
        }
        for rows, least, opt, top in boxes
    ]
    return PyTorchModel(
        module=_Encoder().eval(),
        example_inputs={"ids": torch.randint(0, _NUM_WORDS, (2, 7))},
        dynamic_dims={"ids": {0: "batch", 1: "words"}},
        dim_limits={"batch": DimLimits(min=1, max=8), "words": DimLimits(min=1, max=64)},
        output_names=("embedding",),
        recipe=Recipe(
            kinds=(EngineKind.INDUCTOR, EngineKind.ONNXRUNTIME, EngineKind.OPENVINO),
            precisions=(Precision.FP32,),
            buckets=tuple(Bucket(dims=dims) for dims in buckets),
            inputs={"ids": InputRecipe(low=0, high=_NUM_WORDS, min=0, max=_NUM_WORDS - 1)},
            batching=Batching(batch_dim="batch"),
        ),
    )
