"""The models that are timed: source, recipe, calibration set, and the sizes of the figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.cli.demo.minilm import FIRST_WORD_ID, VOCABULARY_SIZE, tokenise
from services.cli.demo.minilm import recipe as demo_recipe
from services.cli.demo.sentences import sample_sentences
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.calibration_recipe import Calibration
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, Recipe

CALIBRATION_FILE = "calibration.npz"
PRECISIONS = (Precision.FP32, Precision.BF16, Precision.INT8_WEIGHT_ONLY, Precision.INT8)
_MAX_TOKENS = 128
_NUM_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model.

    Attributes:
        factory: as `smelt models add` takes it.
        wanted: least speed-up by the sizes that it is timed at.
    """

    factory: str
    wanted: dict[tuple[int, ...], float]

    def model(self) -> PyTorchModel:
        """The source."""
        module, _, name = self.factory.partition(":")
        made: PyTorchModel = getattr(import_module(module), name)()
        return made

    def recipe(self) -> Recipe:
        """What is built for it."""
        changes = {
            "kinds": tuple(kind for kind in EngineKind if kind is not EngineKind.TENSORRT),
            "precisions": PRECISIONS,
            "calibration": Calibration(path=CALIBRATION_FILE),
        }
        made = _minilm_recipe() if "minilm" in self.factory else _image_recipe()
        return made.model_copy(update=changes)

    def calibration(self) -> dict[str, Array]:
        """Inputs like those of the proof and of the figures."""
        return _token_rows() if "minilm" in self.factory else _images(_NUM_SAMPLES, seed=1)

    def inputs(self, sizes: tuple[int, ...]) -> dict[str, Array]:
        """Inputs of one timed call."""
        return _tokens(*sizes) if len(sizes) > 1 else _images(*sizes, seed=2)


SUBJECTS: Mapping[str, Subject] = {
    "minilm": Subject(
        factory="services.cli.demo.minilm:sentence_embedder",
        wanted={(1, 16): 4.5, (8, 128): 3.5, (32, 128): 3.3},
    ),
    "resnet50": Subject(
        factory="tests.benchmarks.cpu.subjects:resnet50", wanted={(1,): 12.0, (8,): 18.0}
    ),
    "vit": Subject(factory="tests.benchmarks.cpu.subjects:vit", wanted={(1,): 1.0, (8,): 1.0}),
}


def resnet50() -> PyTorchModel:
    """ResNet-50 as transformers has it, its weights from a seed; images in, logits out."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    return _classifier(ResNetForImageClassification(ResNetConfig(num_labels=1000)))


def vit() -> PyTorchModel:
    """The small ViT of 16 x 16 patches as transformers has it, its weights from a seed."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return _classifier(ViTForImageClassification(ViTConfig(num_labels=1000, **sizes)))


class _Logits(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """pixel_values: float32 [B, 3, 224, 224]; returns float32 [B, 1000]."""
        logits: torch.Tensor = self.net(pixel_values).logits
        return logits


def _classifier(net: torch.nn.Module) -> PyTorchModel:
    return PyTorchModel(
        module=_Logits(net).eval(),
        example_inputs={"pixel_values": torch.randn(3, 3, 224, 224)},
        dynamic_dims={"pixel_values": {0: "batch"}},
        dim_limits={"batch": DimLimits(min=1, max=64)},
        output_names=("logits",),
    )


def _minilm_recipe() -> Recipe:
    sequence = DimRange(min=1, opt=16, max=_MAX_TOKENS)
    buckets = tuple(
        Bucket(dims={"batch": DimRange(min=1, opt=batch, max=batch), "sequence": sequence})
        for batch in (1, 8, 32)
    )
    ranking = demo_recipe().ranking
    # Of the ten nearest sentences nine stay: what the field asks of eight bits.
    loose = ranking.model_copy(update={"min_overlap": 0.9}) if ranking else None
    return demo_recipe().model_copy(update={"buckets": buckets, "ranking": loose})


def _image_recipe() -> Recipe:
    return Recipe(
        buckets=(Bucket(dims={"batch": DimRange(min=1, opt=1, max=8)}),),
        # Three standard deviations of an image that was normalised as usual.
        inputs={"pixel_values": InputRecipe(low=-3.0, high=3.0)},
    )


def _token_rows() -> dict[str, Array]:
    """Half real sentences, one to eight in a row; half drawn words, as the proof draws them."""
    rng = np.random.default_rng(0)
    sentences = np.array(sample_sentences())
    texts = [" ".join(rng.choice(sentences, 1 + i % 8)) for i in range(_NUM_SAMPLES // 2)]
    real = tokenise(tuple(texts))
    found = {}
    for name, array in _tokens(_NUM_SAMPLES // 2, _MAX_TOKENS, is_ragged=True).items():
        cut = array[:, : real[name].shape[1]] if array.shape[1] > real[name].shape[1] else array
        rows = real[name][:, :_MAX_TOKENS]
        pad = ((0, 0), (0, cut.shape[1] - rows.shape[1]))
        found[name] = np.concatenate([np.pad(rows, pad), cut])
    return found


def _tokens(batch: int, length: int, *, is_ragged: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, length + 1, (batch, 1)) if is_ragged else np.array([[length]])
    mask = np.broadcast_to(np.arange(length) < lengths, (batch, length))
    return {
        "input_ids": rng.integers(FIRST_WORD_ID, VOCABULARY_SIZE, (batch, length)) * mask,
        "attention_mask": mask.astype(np.int64),
    }


def _images(num: int, *, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"pixel_values": rng.uniform(-3, 3, (num, 3, 224, 224)).astype(np.float32)}
