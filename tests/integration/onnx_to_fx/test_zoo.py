"""The zoo: each architecture's master is one graph that Inductor compiles for every shape."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package

from compiler_worker.builders.graphs import export_dynamic
from compiler_worker.builders.inductor_builder import inductor_config
from compiler_worker.builders.typed_graphs import interface_inputs
from compiler_worker.master.equality import resized_inputs
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from services.contracts.hardware.facts import Generation
from services.contracts.model.recipe import DimRange
from tests.integration.onnx_to_fx import zoo_text, zoo_vision
from tests.integration.onnx_to_fx.zoo_entry import Entry

ZOO: dict[str, Callable[[], Entry]] = {
    "BERT": zoo_text.bert,
    "DistilBERT": zoo_text.distilbert,
    "cross-encoder": zoo_text.cross_encoder,
    "DeBERTa": zoo_text.deberta,
    "T5 encoder": zoo_text.t5_encoder,
    "MPNet": zoo_text.mpnet,
    "Llama prefill": zoo_text.llama_prefill,
    "CLIP text": zoo_text.clip_text,
    "Whisper encoder": zoo_text.whisper_encoder,
    "LSTM and GRU tagger": zoo_text.tagger,
    "ResNet": zoo_vision.resnet,
    "ViT": zoo_vision.vit,
    "ConvNeXt": zoo_vision.convnext,
    "EfficientNet": zoo_vision.efficientnet,
    "CLIP vision": zoo_vision.clip_vision,
    "UNet": zoo_vision.unet,
    "detector": zoo_vision.detector,
    "recommender": zoo_vision.recommender,
}
# A quick one; `test_models.py` has a transformer, `test_dynamic_ops.py` LSTM and GRU.
IN_EACH_RUN = ("recommender",)
PORTABLE = Generation.parse("cpu-x86_64-v3")


def zoo() -> Iterator[pytest.ParameterSet]:
    for name, make in ZOO.items():
        yield pytest.param(make, id=name, marks=() if name in IN_EACH_RUN else pytest.mark.slow)


@pytest.fixture
def quiet() -> None:
    """Loading code for AVX2 on a machine that has more is told as a warning."""
    logging.getLogger("torch.export.pt2_archive").setLevel(logging.ERROR)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("make", list(zoo()))
def test_compiled_master_equals_onnxruntime(make: Callable[[], Entry], tmp_path: Path) -> None:
    torch.manual_seed(0)
    entry = make()
    master = entry.export(entry.source, tmp_path / "master")
    compiled = compiled_by_inductor(master, entry, tmp_path / "engine.pt2")
    session = onnxruntime.InferenceSession(str(master))
    names = [value.name for value in session.get_inputs()]
    for sizes in entry.sizes:
        inputs = resized_inputs(entry.source, sizes)
        wanted = session.run(None, {name: inputs[name].numpy() for name in names})
        found = compiled(*inputs.values())
        assert wanted[0].size > 0
        for got, want in zip(found, wanted, strict=True):
            assert (got.numpy().dtype, tuple(got.shape)) == (want.dtype, want.shape), sizes
            scale = float(np.abs(want).max())
            np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=2e-5 * scale)


def compiled_by_inductor(
    master: Path, entry: Entry, target: Path
) -> Callable[..., list[torch.Tensor]]:
    """Import, export for all sizes, compile: one program, as for a CPU engine."""
    limits = entry.source.dim_limits
    ranges = {
        name: DimRange(min=limit.min, opt=limit.max, max=limit.max)
        for name, limit in limits.items()
    }
    with warnings.catch_warnings():
        # torch's own deprecations inside export and Inductor are not ours to mend.
        warnings.simplefilter("ignore")
        module = graph_module_from_onnx(onnx.load(master))
        program = export_dynamic(module, interface_inputs(master), ranges)
        config = inductor_config(PORTABLE)
        aoti_compile_and_package(program, package_path=str(target), inductor_configs=config)
        return aoti_load_package(str(target))
