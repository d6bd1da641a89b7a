"""The master in one precision, as every compiler takes it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compiler_worker.builders.quantiser import quantiser_options
from compiler_worker.progress import Progress
from services.contracts.builds.code_digest import code_digest
from services.contracts.errors import BuildError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.default_buckets import dynamic_dims
from services.contracts.model.recipe import CALIBRATION_FIX, DimRange
from services.engines.device.toolchain import installed_version

if TYPE_CHECKING:
    import onnx

    from compiler_worker.builders.base import BuildSpec

# Rows of traffic before each feed that was drawn.
_FEEDS_EACH = 3


def typed_graph(
    master_path: Path,
    precision: Precision,
    feeds: Callable[[], Sequence[dict[str, Array]]] | None = None,
) -> "onnx.ModelProto":
    """The master's graph in one precision, weights loaded; inputs and outputs keep their types.

    Args:
        master_path: the master's `model.onnx`.
        precision: what the engine computes in.
        feeds: reads what int8 and fp8 are calibrated with, by input name, of any shape that the
            master takes; others ignore it.

    Raises:
        UnsupportedGraphError: the graph is not available in that precision.
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
            from compiler_worker.precision.weight_only import weight_only_model

            return weight_only_model(model)
        case Precision.INT8 | Precision.FP8:
            if feeds is None:
                raise BuildError(f"{precision} without a calibration set: {CALIBRATION_FIX}")
            from compiler_worker.precision.quantised import quantised_model

            return quantised_model(model, precision, feeds())


def planned_graph(plan: "BuildSpec") -> "onnx.ModelProto":
    """The typed graph of a plan, calibrated once for all kinds; raises what `typed_graph` does."""
    key = plan.key
    feeds = partial(_feeds, plan, plan.calibration_path) if plan.calibration_path else None
    make = partial(typed_graph, plan.master_path, key.precision, feeds)
    if plan.typed_graphs is None or not key.precision.is_calibrated:
        return make()
    from compiler_worker.precision.kept import kept_graph

    identity = {
        "code": code_digest(__name__),
        "master": key.master_digest,
        "calibration": key.calibration_digest,
        "precision": key.precision.value,
        # It runs the samples.
        "onnxruntime": installed_version("onnxruntime"),
        **quantiser_options(key.precision),
    }
    if plan.drawn:
        identity["drawn"] = _digest(plan.drawn)
    return kept_graph(plan.typed_graphs, identity, make)


def typed_files(plan: "BuildSpec", path: Path, progress: Progress) -> dict[str, Path]:
    """Write the typed graph of a plan to one file; by its name, as it is published.

    Args:
        plan: what to build.
        path: of the file.
        progress: called with each step in words.
    """
    import onnx

    progress(f"typing the graph {plan.key.precision}")
    # One file: a typed graph is half the master or less, and its weights are not the master's.
    onnx.save(planned_graph(plan), path)
    return {path.name: path}


def _feeds(plan: "BuildSpec", calibration_path: Path) -> list[dict[str, Array]]:
    from compiler_worker.precision.calibration import feeds, read_calibration

    inputs = interface_inputs(plan.master_path)
    arrays = read_calibration(calibration_path, inputs)
    found = list[dict[str, Array]]()
    drawn = iter(plan.drawn)
    for number, feed in enumerate(feeds(arrays, inputs), 1):
        found.append(feed)
        if number % _FEEDS_EACH == 0 and (between := next(drawn, None)):
            found.append(dict(between))
    return found


def _digest(feeds: Sequence[Mapping[str, Array]]) -> str:
    hasher = hashlib.sha256()
    for name, array in (entry for feed in feeds for entry in sorted(feed.items())):
        hasher.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return hasher.hexdigest()


def interface_inputs(master_path: Path) -> tuple[TensorSpec, ...]:
    """The master's inputs as its file declares them; raises UnsupportedGraphError."""
    import onnx_ir as ir

    from compiler_worker.master.interface import tensor_specs

    return tensor_specs(ir.load(master_path).graph.inputs)


def check_ranges(inputs: Sequence[TensorSpec], ranges: Mapping[str, DimRange]) -> None:
    """Raise BuildError when a bucket has no range for a dynamic dimension."""
    wanted = dynamic_dims(inputs)
    missing = [name for name in wanted if name not in ranges]
    if missing:
        raise BuildError(
            f"no bucket gives a range for dimension '{missing[0]}': expected ranges for "
            f"{', '.join(wanted)}; add it to every bucket of the recipe"
        )


def check_outputs(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise BuildError for an output with a dimension that no input has: it is not unpadded."""
    known = {dim for spec in inputs for dim in spec.shape}
    for spec in outputs:
        for dim in spec.shape:
            if isinstance(dim, str) and dim not in known:
                raise BuildError(
                    f"output '{spec.name}' has dimension '{dim}', which no input has: its padded "
                    "part cannot be cut off; name it after an input's dimension in the master"
                )
