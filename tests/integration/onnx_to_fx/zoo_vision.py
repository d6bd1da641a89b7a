"""Pictures and tables: small models of public architectures, with seeded weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import torch
import transformers
from onnx import TensorProto, helper
from torch import nn

from compiler_worker.master.opened import MODEL_FILE
from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from compiler_worker.master.stored import store_onnx
from tests.integration.onnx_to_fx.zoo_entry import Entry, export

_BATCH = DimLimits(min=1, max=64)


class _Logits(nn.Module):
    """The logits of a classifier, without the dataclass around them."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(pixels).logits
        return logits


def _images(module: nn.Module, outputs: tuple[str, ...] = ("y",), **sides: str) -> Entry:
    """Take a module of pictures of 64 x 64, or of open sides."""
    axes = {0: "batch"} | {int(axis[1:]): name for axis, name in sides.items()}
    side = DimLimits(min=8, max=128)
    source = PyTorchModel(
        module=_settled(module),
        example_inputs={"pixels": torch.randn(3, 3, 64, 64 + 16 * bool(sides))},
        dynamic_dims={"pixels": axes},
        dim_limits={"batch": _BATCH} | dict.fromkeys(sides.values(), side),
        output_names=outputs,
    )
    others = ({"rows": 32, "columns": 48}, {"rows": 41, "columns": 23})
    return Entry(
        source,
        tuple(
            {"batch": batch} | (size if sides else {})
            for batch, size in zip((1, 5), others, strict=True)
        ),
    )


def _settled(module: nn.Module) -> nn.Module:
    """Give normalisations statistics of their own: those of a new one do nothing."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0.0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval()


def classifier(module: nn.Module) -> Entry:
    """A classifier of transformers."""
    return _images(_Logits(module))


def resnet() -> Entry:
    """ResNet-50 with one block of each stage."""
    config = transformers.ResNetConfig(depths=[1, 1, 1, 1], hidden_sizes=[32, 64, 96, 128])
    return _images(_Logits(transformers.ResNetForImageClassification(config)))


def vit() -> Entry:
    """A vision transformer."""
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=64,
    )
    return _images(_Logits(transformers.ViTForImageClassification(config)))


def convnext() -> Entry:
    """ConvNeXt: depthwise windows of 7, norms over channels."""
    config = transformers.ConvNextConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], layer_scale_init_value=0.5
    )
    return _images(_Logits(transformers.ConvNextForImageClassification(config)))


def efficientnet() -> Entry:
    """EfficientNet's first three stages: depthwise, squeeze and excite, odd padding."""
    config = transformers.EfficientNetConfig(
        width_coefficient=0.5,
        depth_coefficient=0.3,
        hidden_dim=640,
        kernel_sizes=[3, 3, 5],
        in_channels=[32, 16, 24],
        out_channels=[16, 24, 40],
        depthwise_padding=[1],
        strides=[1, 2, 2],
        num_block_repeats=[1, 2, 2],
        expand_ratios=[1, 6, 6],
    )
    return _images(_Logits(transformers.EfficientNetForImageClassification(config)))


def clip_vision() -> Entry:
    """CLIP's tower for pictures."""
    config = transformers.CLIPVisionConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=64,
        patch_size=16,
        projection_dim=32,
    )
    return _images(_Embedding(transformers.CLIPVisionModelWithProjection(config)))


class _Embedding(nn.Module):
    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.tower(pixels).image_embeds
        return embeds


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU()
    )


class _UNet(nn.Module):
    """Down twice, up twice, with what was on the way down put beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.deep = _block(3, 8), _block(8, 16), _block(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.joined, self.last = _block(32, 16), _block(24, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        wide = self.first(pixels)
        half = self.second(nn.functional.max_pool2d(wide, 2))
        deep = self.deep(nn.functional.avg_pool2d(half, 2))
        # Odd sides have lost a row on the way down.
        grown = nn.functional.interpolate(self.up(deep), size=half.shape[-2:])
        half = self.joined(torch.cat([grown, half], 1))
        grown = nn.functional.interpolate(half, size=wide.shape[-2:], mode="bilinear")
        classes: torch.Tensor = self.out(self.last(torch.cat([grown, wide], 1)))
        return classes


def unet() -> Entry:
    """A UNet whose pictures are of any size."""
    return _images(_UNet(), _2="rows", _3="columns")


class _Head(nn.Module):
    """Boxes and scores of a one-stage detector, a few per cell of a grid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_block(3, 8), nn.MaxPool2d(4), _block(8, 16), nn.MaxPool2d(2))
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 3, 1)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(pixels)
        cells = self.boxes(hidden).flatten(2).transpose(1, 2)
        corner, size = cells[..., :2].sigmoid() * 40, cells[..., 2:].exp() * 10
        return torch.cat([corner, corner + size], -1), self.scores(hidden).flatten(2).sigmoid()


def _with_suppression(source: PyTorchModel, folder: Path) -> Path:
    """Put suppression behind the head's graph, as detectors are exported."""
    model = onnx.load(export(source, folder / "head"))
    graph = model.graph
    limits = {"most": (TensorProto.INT64, 4), "iou": (1, 0.4), "least": (1, 0.5)}
    for name, (kind, limit) in limits.items():
        graph.initializer.append(helper.make_tensor(name, kind, [1], [limit]))
    graph.initializer.append(helper.make_tensor("place", TensorProto.INT64, [2], [0, 2]))
    graph.node.extend(
        [
            helper.make_node("NonMaxSuppression", ["boxes", "scores", *limits], ["kept"]),
            helper.make_node("Gather", ["kept", "place"], ["rows"], axis=1),
            helper.make_node("GatherND", ["boxes", "rows"], ["found"]),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("found", 1, ["num_found", 4]))
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, ["num_found", 3])
    graph.output.append(kept)
    onnx.save(model, folder / "detector.onnx")
    return store_onnx(folder / "detector.onnx", folder / "master").files[MODEL_FILE]


def detector() -> Entry:
    """A detector's head and the suppression of boxes: as many rows as it finds."""
    return replace(_images(_Head(), ("boxes", "scores")), export=_with_suppression)


class _Recommender(nn.Module):
    """DLRM: bags of ids and numbers become vectors, whose products are ranked."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(100, 16, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(19, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(
        self, numbers: torch.Tensor, first: torch.Tensor, then: torch.Tensor
    ) -> torch.Tensor:
        dense = self.dense(numbers)
        vectors = torch.stack([dense, self.bags[0](first), self.bags[1](then)], 1)
        products = vectors @ vectors.transpose(1, 2)
        pairs = torch.tril_indices(3, 3, -1)
        click: torch.Tensor = self.top(torch.cat([dense, products[:, pairs[0], pairs[1]]], 1))
        return click


def recommender() -> Entry:
    """A recommender with bags of embeddings."""
    inputs = {
        "numbers": torch.randn(3, 13),
        "first": torch.randint(0, 100, (3, 5)),
        "then": torch.randint(0, 100, (3, 4)),
    }
    source = PyTorchModel(
        module=_Recommender().eval(),
        example_inputs=inputs,
        dynamic_dims={name: {0: "batch"} for name in inputs},
        dim_limits={"batch": _BATCH},
        output_names=("y",),
    )
    return Entry(source, ({"batch": 1}, {"batch": 7}))
