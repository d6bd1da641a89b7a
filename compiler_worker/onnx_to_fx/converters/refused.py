"""Ops that have no translation, each with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import onnx

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op

_RANDOM = "ONNX defines no generator of random numbers, so no two runtimes give the same ones"
_REASONS = {
    "Bernoulli": _RANDOM,
    "Multinomial": _RANDOM,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "ImageDecoder": "pictures are files, not tensors; decode them before the model",
}
_TRAINING = "ai.onnx.preview.training"


def _refusing(reason: str) -> Callable[[Op], NoReturn]:
    def convert(op: Op) -> NoReturn:
        raise op.refuse(reason)

    return convert


def _register_all() -> None:
    for schema in onnx.defs.get_all_schemas_with_history():
        reason = _REASONS.get(schema.name) if schema.domain == "" else None
        if schema.domain == _TRAINING:
            reason = "operators of training are not imported; export the model for inference"
        if reason:
            converter(schema.name, versions=(schema.since_version,), domain=schema.domain)(
                _refusing(reason)
            )


_register_all()
