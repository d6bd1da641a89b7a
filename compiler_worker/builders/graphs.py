"""The master as the compilers want it: typed, imported, exported with its dynamic dimensions."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler_worker.builders.quantiser import quantiser_options
from services.contracts.build_key import BUILD_REVISION
from services.contracts.errors import BuildError, UnsupportedGraphError
from services.contracts.kinds import Precision
from services.contracts.recipe import CALIBRATION_FIX, DimRange
from services.contracts.tensors import DATATYPE_FROM_NUMPY, NUMPY_FROM_DATATYPE, TensorSpec
from services.engines.request_check import Sizes
from services.engines.shapes import zeros_at
from services.engines.toolchain import installed_version

if TYPE_CHECKING:
    import onnx
    import torch
    from torch.export import ExportedProgram

    from compiler_worker.builders.base import BuildPlan

# Sizes 0 and 1 are special to torch: a dimension traced with them stays that size for ever.
_SMALLEST_TRACED = 2
_ANY_SIZE = DimRange(min=1, opt=_SMALLEST_TRACED, max=2**31 - 1)


def typed_graph(
    master_path: Path, precision: Precision, calibration_path: Path | None = None
) -> "onnx.ModelProto":
    """The master's graph in one precision, weights loaded; inputs and outputs keep their types.

    Raises:
        UnsupportedGraphError: the graph cannot be had in that precision.
        BuildError: it could not be calibrated, or there is nothing to calibrate it with.
    """
    import onnx

    model = onnx.load(master_path)
    match precision:
        case Precision.FP32:
            return model
        case Precision.FP16 | Precision.BF16:
            from compiler_worker.precision.typed import typed_model

            return typed_model(model, precision)
        case Precision.INT8_WEIGHT_ONLY:
            from compiler_worker.precision.weights import weight_only_model

            return weight_only_model(model)
        case Precision.INT8 | Precision.FP8:
            return _quantised_graph(model, master_path, precision, calibration_path)


def planned_graph(plan: "BuildPlan") -> "onnx.ModelProto":
    """The typed graph of a plan, calibrated once for all kinds; raises what `typed_graph` does."""
    key = plan.key
    make = partial(typed_graph, plan.master_path, key.precision, plan.calibration_path)
    if plan.typed_graphs is None or not key.precision.is_calibrated:
        return make()
    from compiler_worker.precision.kept import kept_graph

    identity = {
        "revision": BUILD_REVISION,
        "master": key.master_digest,
        "calibration": key.calibration_digest,
        "precision": key.precision.value,
        # It runs the samples.
        "onnxruntime": installed_version("onnxruntime"),
        **quantiser_options(key.precision),
    }
    return kept_graph(plan.typed_graphs, identity, make)


def _quantised_graph(
    model: "onnx.ModelProto",
    master_path: Path,
    precision: Precision,
    calibration_path: Path | None,
) -> "onnx.ModelProto":
    from compiler_worker.precision.calibration import feeds, read_calibration
    from compiler_worker.precision.quantised import quantised_model

    if calibration_path is None:
        raise BuildError(f"{precision} without a calibration set: {CALIBRATION_FIX}")
    inputs = interface_inputs(master_path)
    arrays = read_calibration(calibration_path, inputs)
    return quantised_model(model, precision, feeds(arrays, inputs))


def interface_inputs(master_path: Path) -> tuple[TensorSpec, ...]:
    """The master's inputs as its file declares them; raises UnsupportedGraphError."""
    import onnx

    graph = onnx.load(master_path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(_spec_of(entry) for entry in graph.input if entry.name not in weights)


def _spec_of(entry: "onnx.ValueInfoProto") -> TensorSpec:
    from onnx.helper import tensor_dtype_to_np_dtype

    tensor = entry.type.tensor_type
    dtype = tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype not in DATATYPE_FROM_NUMPY:
        raise UnsupportedGraphError(
            f"input '{entry.name}' is {dtype}, one of {', '.join(NUMPY_FROM_DATATYPE)} wanted; "
            "cast it inside the model"
        )
    return TensorSpec(
        name=entry.name,
        datatype=DATATYPE_FROM_NUMPY[dtype],
        shape=tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim),
    )


def fx_graph(master_path: Path, precision: Precision) -> "torch.fx.GraphModule":
    """The typed graph as one torch.fx graph; raises UnsupportedGraphError."""
    from compiler_worker.onnx_to_fx import graph_module_from_onnx

    return graph_module_from_onnx(typed_graph(master_path, precision))


def export_dynamic(
    module: "torch.fx.GraphModule", inputs: Sequence[TensorSpec], ranges: Mapping[str, DimRange]
) -> "ExportedProgram":
    """Export with the dynamic dimensions of the inputs.

    Those with a range are proven to work over all of it; torch finds the range of the others
    by itself (a table of 512 positions bounds a sequence).
    """
    import torch

    full = {name: _exported(ranges.get(name, _ANY_SIZE)) for name in dynamic_names(inputs)}
    arguments = zero_tensors(inputs, traced_sizes(full))
    dims = export_dims(full)
    shapes = tuple(
        {axis: dims[dim] for axis, dim in enumerate(spec.shape) if dim in dims} for spec in inputs
    )
    return torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)


def _exported(dim: DimRange) -> DimRange:
    """What torch takes for a dynamic dimension: of 0 and 1 alone it knows no graph."""
    is_too_narrow = dim.min < dim.max < _SMALLEST_TRACED
    return dim.model_copy(update={"max": _SMALLEST_TRACED}) if is_too_narrow else dim


def export_static(
    module: "torch.fx.GraphModule", inputs: Sequence[TensorSpec], sizes: Sizes, device: str
) -> "ExportedProgram":
    """Export for one set of sizes."""
    import torch

    arguments = zero_tensors(inputs, sizes, device)
    return torch.export.export(module.to(device), arguments, strict=False)


def zero_tensors(
    inputs: Sequence[TensorSpec], sizes: Sizes, device: str = "cpu"
) -> "tuple[torch.Tensor, ...]":
    """Example inputs: zero is a valid index everywhere."""
    from services.engines.torch_arrays import tensor_from_array

    return tuple(tensor_from_array(zeros_at(spec, sizes)).to(device) for spec in inputs)


def dynamic_names(inputs: Sequence[TensorSpec]) -> list[str]:
    """Names of the dynamic dimensions, in order of appearance."""
    dims = (dim for spec in inputs for dim in spec.shape if isinstance(dim, str))
    return list(dict.fromkeys(dims))


def check_ranges(inputs: Sequence[TensorSpec], ranges: Mapping[str, DimRange]) -> None:
    """Raise BuildError when a bucket says nothing about a dynamic dimension."""
    missing = [name for name in dynamic_names(inputs) if name not in ranges]
    if missing:
        raise BuildError(
            f"no bucket gives a range for dimension '{missing[0]}': expected ranges for "
            f"{', '.join(dynamic_names(inputs))}; add it to every bucket of the recipe"
        )


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
