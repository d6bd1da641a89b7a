"""Whether `smelt advise` is right: models of many kinds, advised, built, proven and timed here.

    python -m tests.benchmarks.advice_zoo FOLDER [--names NAME ...] [--precisions P ...] [--write F]

Each is exported with seeded weights, added to a store in FOLDER and built by `smelt build`; what
was built before is not built again, so that a run can be ended and gone on with. Advice does not
see the proofs of the model that it is for, and is asked once more with `--measure`. It is right
where its first choice is within 10 % of the best engine that was proven. Processes may build
different models in one FOLDER side by side; without names after `--names` nothing is built.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
import yaml

from services.cli.advise.advise import Advised, model_advice, record_document
from services.cli.demo.minilm import tokenise
from services.cli.demo.sentences import sample_sentences
from services.cli.main_options import settings_for
from services.cli.registry import open_registry
from services.contracts.kserve.tensors import Array
from services.contracts.traffic.sampled_rows import bytes_from_arrays
from tests.benchmarks.newcomers import smelt
from tests.integration.newcomers.exports import NEWCOMERS
from tests.integration.onnx_to_fx.zoo import ZooModel, minilm, resnet50

_OPSET = 20


def _classifier(module: torch.nn.Module) -> ZooModel:
    """Pictures of 64 x 64, in batches."""
    images = torch.randn(3, 3, 64, 64)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    return ZooModel(module.eval(), (images,), (batch,), ((images,),))


class _Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels).logits  # type: ignore[no-any-return]


def _resnet18() -> ZooModel:
    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"
    )
    return _classifier(_Logits(transformers.ResNetForImageClassification(config)))


def _vit() -> ZooModel:
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=64,
        patch_size=8,
    )
    return _classifier(_Logits(transformers.ViTForImageClassification(config)))


def _mlp() -> ZooModel:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((256, 1024), (1024, 1024), (1024, 256)):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    rows = torch.randn(3, 256)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    return ZooModel(torch.nn.Sequential(*layers).eval(), (rows,), (batch,), ((rows,),))


class _Recurrent(torch.nn.Module):
    """Two layers of GRU over sentences of one length, and the classes of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.GRU(64, 128, num_layers=2, batch_first=True)
        self.classes = torch.nn.Linear(128, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.classes(self.steps(rows)[0][:, -1])  # type: ignore[no-any-return]


def _gru() -> ZooModel:
    rows = torch.randn(3, 24, 64)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    return ZooModel(_Recurrent().eval(), (rows,), (batch,), ((rows,),))


def _pictures(module: torch.nn.Module) -> ZooModel:
    """Pictures of 224 x 224, two at most."""
    images = torch.randn(2, 3, 224, 224)
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    return ZooModel(_Logits(module).eval(), (images,), (batch,), ((images,),))


def _swin_t() -> ZooModel:
    config = transformers.SwinConfig()
    # torch's exporter fails on the fused attention, whose outputs lie in memory in another order.
    config._attn_implementation = "eager"  # noqa: SLF001 - the library's own way to say so
    return _pictures(transformers.SwinForImageClassification(config))


def _vit_s() -> ZooModel:
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return _pictures(transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)))


def _efficientnet_b0() -> ZooModel:
    config = transformers.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280
    )
    return _pictures(transformers.EfficientNetForImageClassification(config))


class _Hidden(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(ids, attention_mask=mask)[0]  # type: ignore[no-any-return]


def _encoder(model: torch.nn.Module) -> ZooModel:
    """Ids and mask of texts, of 256 tokens at most."""
    ids = torch.randint(5, 1000, (3, 17))
    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("sequence", max=256)}
    inputs = (ids, torch.ones_like(ids))
    return ZooModel(_Hidden(model).eval(), inputs, (dims, dims), (inputs,))


def _distilbert_base() -> ZooModel:
    return _encoder(transformers.DistilBertModel(transformers.DistilBertConfig()))


def _bert_small() -> ZooModel:
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = transformers.BertConfig(**sizes, intermediate_size=2048)
    return _encoder(transformers.BertModel(config, add_pooling_layer=False))


def _whisper_tiny() -> ZooModel:
    encoder = transformers.WhisperModel(transformers.WhisperConfig()).encoder

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = encoder

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.model(features)[0]  # type: ignore[no-any-return]

    features = torch.randn(2, 80, 3000)
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    return ZooModel(Encoder().eval(), (features,), (batch,), ((features,),))


def _export(make: Callable[[], ZooModel]) -> Callable[[Path], object]:
    def export(path: Path) -> None:
        torch.manual_seed(0)
        onnx.save(make().onnx(_OPSET), path)

    return export


# In the order in which they are built: the quick ones first.
ZOO: dict[str, Callable[[Path], object]] = {
    "scikit-learn pipeline": NEWCOMERS["scikit-learn pipeline"],
    "LightGBM": NEWCOMERS["LightGBM"],
    "LSTM tagger": NEWCOMERS["LSTM tagger"],
    "ResNet-18": _export(_resnet18),
    "distilbert": NEWCOMERS["distilbert"],
    "mobilenetv3": NEWCOMERS["mobilenetv3"],
    "GRU": _export(_gru),
    "ViT": _export(_vit),
    "whisper encoder": NEWCOMERS["whisper encoder"],
    "convnext_tiny": NEWCOMERS["convnext_tiny"],
    "detector": NEWCOMERS["detector"],
    "MLP": _export(_mlp),
    "MiniLM": _export(minilm),
    "T5 encoder": NEWCOMERS["T5 encoder"],
    "deberta-v2": NEWCOMERS["deberta-v2"],
    "swin_tiny": NEWCOMERS["swin_tiny"],
    "efficientnet_b0": NEWCOMERS["efficientnet_b0"],
    "ResNet-50": _export(resnet50),
}
# Of the sizes that people serve, with buckets that are built in minutes.
_SERVED: Mapping[str, Callable[[], ZooModel]] = {
    "MobileNetV2": lambda: _pictures(
        transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config())
    ),
    "EfficientNet-B0": _efficientnet_b0,
    "ResNet-50-224": lambda: _pictures(
        transformers.ResNetForImageClassification(transformers.ResNetConfig())
    ),
    "ConvNeXt-T": lambda: _pictures(
        transformers.ConvNextForImageClassification(transformers.ConvNextConfig())
    ),
    "Swin-T": _swin_t,
    "ViT-S": _vit_s,
    "DistilBERT-base": _distilbert_base,
    "BERT-small": _bert_small,
    "MiniLM-texts": minilm,
    "Whisper-tiny": _whisper_tiny,
}
ZOO |= {name: _export(make) for name, make in _SERVED.items()}
# Those that are also built in int8.
_CALIBRATED = ("MLP", "MiniLM", "MiniLM-texts")


def _recipe(name: str, path: Path, precisions: list[str]) -> list[str]:
    """Options of `smelt models add`: int8 needs a calibration set."""
    recipe: dict[str, Any] = {"precisions": precisions} if precisions else {}
    if name in _SERVED:
        graph = onnx.load(path, load_external_data=False).graph
        axes = graph.input[0].type.tensor_type.shape.dim
        most = {"batch": 2, "sequence": 64, "seq": 64}
        dims = {each.dim_param: most[each.dim_param] for each in axes if each.dim_param}
        recipe["buckets"] = [{"dims": {n: {"min": 1, "opt": m, "max": m} for n, m in dims.items()}}]
    if name in _CALIBRATED and "int8" in (precisions or ["int8"]):
        recipe["calibration"] = {"path": str(_samples(name, path))}
    if not recipe:
        return []
    written = path.with_suffix(".yaml")
    written.write_text(yaml.safe_dump(recipe))
    return ["--recipe", str(written)]


def _samples(name: str, path: Path) -> Path:
    names = [v.name for v in onnx.load(path, load_external_data=False).graph.input]
    arrays: list[Array] = [np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)]
    if name.startswith("MiniLM"):
        arrays = list(tokenise(sample_sentences()).values())
    samples = path.with_suffix(".npz")
    samples.write_bytes(bytes_from_arrays(dict(zip(names, arrays, strict=True))))
    return samples


def build(name: str, folder: Path, precisions: list[str]) -> None:
    """Export, add and build one model, unless a run before did.

    Args:
        name: of the zoo.
        folder: of the store, and of what was built.
        precisions: of the recipe; empty for those by default.
    """
    slug = name.replace(" ", "-").lower()
    done = folder / f"{slug}.txt"
    if done.exists():
        return
    path = folder / f"{slug}.onnx"
    ZOO[name](path)
    smelt("models", "add", slug, str(path), *_recipe(name, path, precisions))
    done.write_text(_built(slug))


def _built(slug: str) -> str:
    """What `smelt build` printed; an engine that fails its proof is an outcome too."""
    try:
        return smelt("build", slug)
    except RuntimeError as error:
        return str(error)


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    verdicts = {True: "right", False: "wrong", None: "not tried"}
    yield "| model | first choice | expected | best proven | times the fallback | behind | advice |"
    yield "|---|---|---|---|---:|---:|---|"
    for row in record["models"]:
        first, found = row["first"], row["outcome"]
        speed = f"{found['speed']:.2f}{' ?' if found['is_wild'] else ''}" if found["speed"] else "-"
        behind = f"{found['behind']:.2f}" if found["behind"] else "-"
        yield (
            f"| {row['model']} | {first['kind']} {first['precision']} "
            f"| {first['low']:.2f} to {first['high']:.2f} "
            f"| {found['kind']} {found['precision']} | {speed} | {behind} "
            f"| {verdicts[found['is_right']]} |"
        )
    yield ""
    yield f"Right: {record['num_right']} of {record['num_judged']}."


def by_the_table() -> dict[str, Any]:
    """The record as it would be if the store had no proof of any other model."""
    registry = open_registry(settings_for())
    documents = []
    for name in registry.model_names():
        advised = Advised(registry, registry.model_version(name), is_sampled=False)
        devices = {plan.node_class.generation: plan.facts for plan in advised.plans}
        documents.append(model_advice(advised, devices, ()))
    return record_document(documents)


def main() -> None:
    """Build what is missing, ask for advice, and print both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=[*ZOO], choices=[*ZOO])
    parser.add_argument("--precisions", nargs="*", default=[])
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SMELT_HOME"] = str(folder / "home")
    for name in arguments.names:
        print(name, flush=True)
        build(name, folder, arguments.precisions)
    records = {
        "By the proofs of other models:": json.loads(smelt("advise", "--json")),
        "By the table alone, without the store's proofs:": by_the_table(),
        "With --measure:": json.loads(smelt("advise", "--measure", "--json")),
    }
    text = "\n".join(
        line for words, record in records.items() for line in (words, "", *_lines(record), "")
    )
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
