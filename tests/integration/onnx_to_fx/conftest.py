"""Exported models with their ONNX Runtime answers, made once per run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from compiler_worker.onnx_to_fx import graph_module_from_onnx
from tests.integration.onnx_to_fx.zoo import MODELS, ZooModel


@dataclass(frozen=True, slots=True)
class Imported:
    """One model at one opset, exported, imported, and its reference answers."""

    source: ZooModel
    onnx_model: onnx.ModelProto
    module: torch.fx.GraphModule
    answers: tuple[np.ndarray, ...]


@pytest.fixture(scope="session")
def imported() -> Callable[[str, int], Imported]:
    """Return what makes (once) the import of a model by name and opset."""

    @cache
    def make(name: str, opset: int) -> Imported:
        torch.manual_seed(0)
        source = MODELS[name]()
        model = source.onnx(opset)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        names = [entry.name for entry in session.get_inputs()]
        answers = tuple(
            session.run(None, {k: v.numpy() for k, v in zip(names, inputs, strict=True)})[0]
            for inputs in source.inputs
        )
        return Imported(source, model, graph_module_from_onnx(model), answers)

    return make
