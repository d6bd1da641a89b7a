"""The master imported into torch, and exported with its dynamic dimensions."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler_worker.builders.typed_graphs import typed_graph
from services.contracts.errors import BuildError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.recipe import DimRange
from services.engines.request_check import Sizes
from services.engines.shapes import zeros_at

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


# Sizes 0 and 1 are special to torch: a dimension traced with them stays that size for ever.
_SMALLEST_TRACED = 2
_ANY_SIZE = DimRange(min=1, opt=_SMALLEST_TRACED, max=2**31 - 1)


def fx_graph(master_path: Path, precision: Precision) -> "torch.fx.GraphModule":
    """The typed graph as one torch.fx graph; raises UnsupportedGraphError."""
    from compiler_worker.onnx_to_fx import graph_module_from_onnx

    return graph_module_from_onnx(typed_graph(master_path, precision))


def export_dynamic(
    module: "torch.fx.GraphModule", inputs: Sequence[TensorSpec], ranges: Mapping[str, DimRange]
) -> "ExportedProgram":
    """Export with the dynamic dimensions of the inputs.

    Those with a range are proven to work over all of it; torch finds the range of the others
    on its own (a table of 512 positions bounds a sequence).

    Args:
        module: the imported graph, on the CPU.
        inputs: specs of its arguments, in order.
        ranges: by name of a dynamic dimension; those without one are left to torch.
    """
    import torch

    full = {name: _exported(ranges.get(name, _ANY_SIZE)) for name in dynamic_dims(inputs)}
    arguments = zero_tensors(inputs, traced_sizes(full))
    dims = export_dims(full)
    shapes = tuple(
        {axis: dims[dim] for axis, dim in enumerate(spec.shape) if dim in dims} for spec in inputs
    )
    # strict=False traces the graph as it runs: Dynamo's analysis of Python code is for modules that
    # were written by hand.
    program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
    _check_empty(program, module, inputs, ranges)
    return program


def _check_empty(
    program: "ExportedProgram",
    module: "torch.fx.GraphModule",
    inputs: Sequence[TensorSpec],
    ranges: Mapping[str, DimRange],
) -> None:
    """A size is positive to torch, which may decide by that what a graph compares them with."""
    exported = program.module(check_guards=False)
    usual = traced_sizes(ranges)
    for name in (name for name, dim in ranges.items() if not dim.min):
        arguments = zero_tensors(inputs, usual | {name: 0})
        try:
            wanted = module(*arguments)
        except Exception:  # noqa: S112 - what the import itself does not compute says nothing here
            continue
        found = exported(*arguments)
        if not all(map(_are_equal, found, wanted)):
            raise BuildError(
                f"torch.export takes '{name}' to be 1 at least: its program answers something else "
                f"than the graph at {name}=0; begin the bucket at 1"
            )


def _are_equal(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    return one.shape == other.shape and one.allclose(other, rtol=1e-3, atol=1e-3, equal_nan=True)


def _exported(dim: DimRange) -> DimRange:
    """What torch takes for a dynamic dimension: one that ends at 2 it compiles for 2 alone."""
    is_too_narrow = dim.min < dim.max <= _SMALLEST_TRACED
    return dim.model_copy(update={"max": _SMALLEST_TRACED + 1}) if is_too_narrow else dim


def export_static(
    module: "torch.fx.GraphModule", inputs: Sequence[TensorSpec], sizes: Sizes, device: str
) -> "ExportedProgram":
    """Export for one set of sizes, with all dimensions static.

    Args:
        module: the imported graph; moved to the device in place.
        inputs: specs of its arguments, in order.
        sizes: one for each dynamic dimension.
        device: of torch, `cpu` or `cuda`.
    """
    import torch

    arguments = zero_tensors(inputs, sizes, device)
    return torch.export.export(module.to(device), arguments, strict=False)


def zero_tensors(
    inputs: Sequence[TensorSpec], sizes: Sizes, device: str = "cpu"
) -> "tuple[torch.Tensor, ...]":
    """Example inputs of any shape, that of their specs: zero is a valid index everywhere.

    Args:
        inputs: specs of the arguments, in order.
        sizes: one for each dynamic dimension.
        device: of torch, `cpu` or `cuda`.
    """
    from services.engines.torch_runtime.torch_arrays import tensor_from_array

    return tuple(tensor_from_array(zeros_at(spec, sizes)).to(device) for spec in inputs)


def traced_sizes(ranges: Mapping[str, DimRange]) -> Sizes:
    """Sizes to trace with: inside the ranges, above 1 and all different where possible.

    Two dimensions of one size would be taken for one dimension.
    """
    sizes: Sizes = {}
    for name, dim in ranges.items():
        size = min(max(dim.min, _SMALLEST_TRACED), dim.max)
        while size in sizes.values() and size < dim.max:
            size += 1
        sizes[name] = size
    return sizes


def export_dims(ranges: Mapping[str, DimRange]) -> dict[str, Any]:
    """torch.export dimensions by name; a range of one size is static and left out."""
    from torch.export import Dim

    return {
        name: Dim.AUTO
        if dim is _ANY_SIZE
        else Dim(re.sub(r"\W", "_", name), min=dim.min, max=dim.max)
        for name, dim in ranges.items()
        if dim.min < dim.max
    }
