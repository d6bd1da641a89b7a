"""Whether a stored master computes what the PyTorch module computes, at two shapes.

This finds graphs that mean something else: a shape taken for a constant, an op exported
wrongly. How precise an engine is, its proof measures later.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensors import Array

# Two float32 evaluations in another order differ by 1e-7 to 1e-5; a wrong graph by far more.
_MAX_REL_L2 = 1e-4


def check_equal(model: PyTorchModel, path: Path) -> None:
    """Compare ONNX Runtime with the module at the traced and at one other shape.

    Raises:
        InvalidModelError: ONNX Runtime refuses the graph, or an output differs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # What it logs would end up on the user's terminal, and all that matters is raised as well.
    options.log_severity_level = 4
    traced = model.traced_sizes()
    # onnxruntime's errors share no base class below Exception.
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise InvalidModelError(f"ONNX Runtime refuses the graph: {error}") from error
    for sizes in (traced, other_sizes(traced, model.dim_limits)):
        inputs = resized_inputs(model, sizes)
        feeds = {name: tensor.numpy() for name, tensor in inputs.items()}
        try:
            found = session.run(list(model.output_names), feeds)
        except Exception as error:
            raise InvalidModelError(f"ONNX Runtime fails at sizes {sizes}: {error}") from error
        _compare(found, _module_outputs(model, inputs), model.output_names, sizes)


def other_sizes(traced: dict[str, int], limits: dict[str, DimLimits]) -> dict[str, int]:
    """A second size for every dynamic dimension, none equal to another where limits allow.

    Raises:
        InvalidModelError: the limits of a dimension allow the traced size alone.
    """
    sizes: dict[str, int] = {}
    for dim, size in traced.items():
        limit = limits[dim]
        candidates = [*range(size + 1, min(limit.max, size + 16) + 1), *range(limit.min, size)]
        if not candidates:
            raise InvalidModelError(
                f"dimension '{dim}' is dynamic, but its limits allow only {size}; widen "
                "dim_limits or make it static"
            )
        free = [c for c in candidates if c not in sizes.values()]
        sizes[dim] = (free or candidates)[0]
    return sizes


def resized_inputs(model: PyTorchModel, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """The example inputs, of any shape, cut or repeated along dynamic axes: still valid values."""
    inputs = dict(model.example_inputs)
    for name, axes in model.dynamic_dims.items():
        for axis, dim in axes.items():
            # Repeated and not drawn: what the owner gave is valid, ids of a table for one.
            wrapped = torch.arange(sizes[dim]) % inputs[name].shape[axis]
            inputs[name] = inputs[name].index_select(axis, wrapped)
    return inputs


def _module_outputs(model: PyTorchModel, inputs: dict[str, torch.Tensor]) -> list[Array]:
    with torch.inference_mode():
        result = model.module(*inputs.values())
    if isinstance(result, torch.Tensor):
        outputs = [result]
    else:
        outputs = list(result.values() if isinstance(result, Mapping) else result)
    if len(outputs) != len(model.output_names):
        raise InvalidModelError(
            f"the module returns {len(outputs)} outputs, output_names has "
            f"{len(model.output_names)}; name each output once"
        )
    for name, output in zip(model.output_names, outputs, strict=True):
        if output.dtype is torch.bfloat16:
            raise InvalidModelError(
                f"output '{name}' of the module is bfloat16, float32 wanted: a master is "
                "float32, narrow types come from the recipe's precisions"
            )
    return [output.numpy() for output in outputs]


def _compare(
    found: list[Array], wanted: list[Array], names: tuple[str, ...], sizes: dict[str, int]
) -> None:
    for name, got, want in zip(names, found, wanted, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise InvalidModelError(
                f"output '{name}' at {sizes}: {got.dtype} {list(got.shape)} found, "
                f"{want.dtype} {list(want.shape)} wanted"
            )
        distance = _rel_l2(got, want)
        # Written so that NaN fails too.
        if not distance <= _MAX_REL_L2:
            raise InvalidModelError(
                f"output '{name}' at {sizes}: relative L2 distance {distance:.2e} to the "
                f"PyTorch module found, at most {_MAX_REL_L2:.0e} wanted"
            )


def _rel_l2(got: Array, want: Array) -> float:
    exact = want.astype(np.float64)
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(got.astype(np.float64) - exact)) / (norm or 1.0)
