"""Models that people bring first, each exported in its library's own default way.

Weights are seeded and configurations small. What is not installed is stood in for by the same
architecture of a library that is (timm's and torchvision's by transformers, trees of LightGBM and
scikit-learn by hand).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from torch import nn
from torch.export import Dim

from services.contracts.kserve.tensors import Array
from tests.conformance.trees import classifier, regressor
from tests.integration.onnx_to_fx import zoo_text, zoo_vision

Inputs = Mapping[str, Array]
# Writes the file, and gives requests of other sizes than those that it was exported with.
Export = Callable[[Path], tuple[Inputs, ...]]


def is_installed(*names: str) -> bool:
    """Whether all of these libraries are there."""
    return all(importlib.util.find_spec(name) for name in names)


def plain(output: Array | list[dict[int, float]]) -> Array:
    """Maps of class to probability as a table, whose columns are the classes in their order."""
    if isinstance(output, np.ndarray):
        return output
    return np.array([[row[key] for key in sorted(row)] for row in output], np.float32)


def _exported(
    module: nn.Module, arguments: tuple[torch.Tensor, ...], path: Path, **options: Any
) -> list[str]:
    """Export as torch's documentation does; names of the inputs as torch took them."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        options = {"dynamo": True} | options
        torch.onnx.export(module.eval(), arguments, str(path), **options)
    return [value.name for value in onnx.load(path, load_external_data=False).graph.input]


def _drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _picture(name: str, instead: Callable[[], Any], size: int = 64, **config: Any) -> Export:
    """A model of timm by name, with as many pictures as one likes."""

    def export(path: Path) -> tuple[Inputs, ...]:
        torch.manual_seed(0)
        if is_installed("timm"):
            import timm

            module = timm.create_model(name, num_classes=10, **config)
        else:
            module = instead().source.module
        example = torch.randn(2, 3, size, size)
        (pixels,) = _exported(module, (example,), path, dynamic_shapes=({0: Dim.DYNAMIC},))
        return {pixels: _drawn(1, 3, size, size)}, {pixels: _drawn(5, 3, size, size)}

    return export


def _text(make: Callable[[], Any]) -> Export:
    """A model of transformers: ids and mask, both dynamic."""

    def export(path: Path) -> tuple[Inputs, ...]:
        torch.manual_seed(0)
        module = make().source.module
        ids = torch.randint(5, 1000, (2, 17))
        dims = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},) * 2
        names = _exported(module, (ids, torch.ones_like(ids)), path, dynamic_shapes=dims)
        return tuple(_texts(names, *sizes) for sizes in ((1, 5), (4, 33)))

    return export


def _texts(names: list[str], batch: int, length: int) -> Inputs:
    ids = np.random.default_rng(length).integers(5, 1000, (batch, length))
    mask = np.ones_like(ids)
    mask[-1, length - 2 :] = 0
    return dict(zip(names, (ids, mask), strict=True))


def _t5(path: Path) -> tuple[Inputs, ...]:
    """By tracing, which leaves dimensions unnamed: torch.export fails on its attention."""
    torch.manual_seed(0)
    module = zoo_text.t5_encoder().source.module
    ids, names = torch.randint(5, 1000, (2, 17)), ["ids", "mask"]
    _exported(
        module,
        (ids, torch.ones_like(ids)),
        path,
        dynamo=False,
        input_names=names,
        dynamic_axes={name: [0, 1] for name in names},
    )
    return tuple(_texts(names, *sizes) for sizes in ((1, 5), (4, 33)))


def _whisper(path: Path) -> tuple[Inputs, ...]:
    torch.manual_seed(0)
    module = zoo_text.whisper_encoder().source.module
    example = torch.randn(2, 20, 100)
    (name,) = _exported(module, (example,), path, dynamic_shapes=({0: Dim.DYNAMIC},))
    return {name: _drawn(1, 20, 100)}, {name: _drawn(5, 20, 100)}


class _Boxes(nn.Module):
    """A detector of torchvision without its dataclasses: one picture, boxes with scores."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.detector([pixels[0]])[0]
        return found["boxes"], found["scores"], found["labels"]


def _detector(path: Path) -> tuple[Inputs, ...]:
    """As torchvision's documentation exports one: a picture of one size."""
    torch.manual_seed(0)
    if not is_installed("torchvision"):
        source = zoo_vision.detector().source
        (pixels, *_) = source.example_inputs.values()
        names = _exported(source.module, (pixels[:1],), path)
        return ({names[0]: _drawn(1, *pixels.shape[1:])},)
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    module = _Boxes(ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None))
    # By tracing, as torchvision's own tests do: torch.export fails on its suppression of boxes.
    (name,) = _exported(module, (torch.rand(1, 3, 320, 320),), path, dynamo=False)
    return ({name: np.abs(_drawn(1, 3, 320, 320)) / 4},)


class _Tagger(nn.Module):
    """A label for every token of sentences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 32)
        self.lstm = nn.LSTM(32, 24, batch_first=True, bidirectional=True)
        self.labels = nn.Linear(48, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.labels(self.lstm(self.words(ids))[0])  # type: ignore[no-any-return]


def _tagger(path: Path) -> tuple[Inputs, ...]:
    """A recurrent tagger; torch fixes the length of its output in the file at the example's."""
    torch.manual_seed(0)
    module = _Tagger()
    dims = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    (name,) = _exported(module, (torch.randint(0, 1000, (3, 12)),), path, dynamic_shapes=dims)
    sizes = ((1, 12), (5, 7), (2, 40))
    return tuple({name: np.arange(n * t).reshape(n, t) % 1000} for n, t in sizes)


def _table() -> tuple[Array, Array]:
    features = _drawn(200, 4)
    return features, (features[:, 0] + features[:, 1] ** 2 > 1).astype(np.int64)


def _lightgbm(path: Path) -> tuple[Inputs, ...]:
    features, labels = _table()
    if is_installed("lightgbm", "onnxmltools"):
        import lightgbm
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        booster = lightgbm.LGBMRegressor(n_estimators=20, num_leaves=7, verbose=-1)
        booster.fit(features, labels)
        kinds = [("input", FloatTensorType([None, 4]))]
        model = onnxmltools.convert_lightgbm(booster, initial_types=kinds)
    else:
        model = regressor()
    onnx.save(model, path)
    return _rows(model)


def _pipeline(path: Path) -> tuple[Inputs, ...]:
    features, labels = _table()
    if is_installed("sklearn", "skl2onnx"):
        import skl2onnx
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        pipeline = make_pipeline(StandardScaler(), RandomForestClassifier(10, random_state=0))
        pipeline.fit(features, labels)
        model = skl2onnx.to_onnx(pipeline, features[:1])
    else:
        model = classifier(has_maps=True)
    onnx.save(model, path)
    return _rows(model)


def _rows(model: onnx.ModelProto) -> tuple[Inputs, ...]:
    name = model.graph.input[0].name
    # Above 0, as a root is taken of those by hand.
    return {name: np.abs(_drawn(1, 4))}, {name: np.abs(_drawn(7, 4))}


def _swin() -> Any:
    config = transformers.SwinConfig(
        image_size=64, patch_size=2, embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=4
    )
    # torch's exporter fails on the fused attention, whose outputs lie in memory in another order.
    config._attn_implementation = "eager"  # noqa: SLF001 - the library's own way to say so
    return zoo_vision.classifier(transformers.SwinForImageClassification(config))


def _mobilenet() -> Any:
    config = transformers.MobileNetV2Config(depth_multiplier=0.35)
    return zoo_vision.classifier(transformers.MobileNetV2ForImageClassification(config))


NEWCOMERS: dict[str, Export] = {
    "mobilenetv3": _picture("mobilenetv3_small_050", _mobilenet),
    "efficientnet_b0": _picture("efficientnet_b0", zoo_vision.efficientnet),
    "convnext_tiny": _picture("convnext_atto", zoo_vision.convnext),
    "swin_tiny": _picture(
        "swin_tiny_patch4_window7_224",
        _swin,
        img_size=64,
        window_size=4,
        embed_dim=24,
        depths=(1, 1),
        num_heads=(2, 4),
    ),
    "distilbert": _text(zoo_text.distilbert),
    "deberta-v2": _text(zoo_text.deberta),
    "T5 encoder": _t5,
    "whisper encoder": _whisper,
    "detector": _detector,
    "LSTM tagger": _tagger,
    "LightGBM": _lightgbm,
    "scikit-learn pipeline": _pipeline,
}
