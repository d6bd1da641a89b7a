"""How an architecture of the zoo becomes a master."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from compiler_worker.master.equality import check_equal
from compiler_worker.master.export import export_master
from compiler_worker.master.opened import MODEL_FILE
from compiler_worker.master.pytorch_source import PyTorchModel
from compiler_worker.master.stored import store_onnx

Export = Callable[[PyTorchModel, Path], Path]


def export(source: PyTorchModel, folder: Path) -> Path:
    """Export as `models add` does; the master's file."""
    return export_master(source, folder, lambda line: None).files[MODEL_FILE]


def export_by_tracing(source: PyTorchModel, folder: Path) -> Path:
    """Export by the way before torch.export, which keeps a recurrent layer one op."""
    path = folder.with_suffix(".onnx")
    with warnings.catch_warnings():
        # It is deprecated, and warns of lengths that differ within a batch.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            source.module,
            tuple(source.example_inputs.values()),
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=list(source.example_inputs),
            output_names=list(source.output_names),
            dynamic_axes=source.dynamic_dims,
        )
    stored = store_onnx(path, folder).files[MODEL_FILE]
    check_equal(source, stored)
    return stored


@dataclass(frozen=True)
class Entry:
    """An architecture.

    Attributes:
        source: the module with what an export needs.
        sizes: of the dynamic dimensions, none of them as traced.
        export: how it becomes a master.
    """

    source: PyTorchModel
    sizes: tuple[dict[str, int], ...]
    export: Export = export
