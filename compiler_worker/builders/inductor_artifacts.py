"""Standalone Inductor artifacts: kernels only, one per bucket at its largest sizes.

Weights are arguments. Those that are the master's own, up to a cast, or several of them side
by side, are named in the index and read from the master at load; the others (constants that
the typed graph made, convolutions with a normalisation folded in) are files of the engine.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.artifact_cache import keep_artifact, load_artifacts
from compiler_worker.builders.base import BuildOutput, BuildSpec
from compiler_worker.builders.graphs import export_static, fx_graph
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.fx_rewrites.rewrite import Rewritten, rewritten
from compiler_worker.progress import Progress
from services.contracts.errors import BuildError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY
from services.engines.inductor.artifact_index import (
    CONSTANTS,
    INDEX,
    ArtifactIndex,
    BucketArtifact,
    WeightRef,
)
from services.engines.inductor.artifact_weights import MasterWeights, axes_in_memory, converted
from services.engines.request_check import Sizes
from services.engines.torch_runtime.programs import lifted_weights
from services.engines.torch_runtime.torch_arrays import array_over


def build_artifacts(
    plan: BuildSpec, config: Mapping[str, Any], workspace: Path, progress: Progress, *, device: str
) -> BuildOutput:
    """Compile every bucket at its largest sizes and write the index.

    Args:
        plan: what to build.
        config: Inductor's options by name.
        workspace: where the artifacts, the index and the engine's own constants are written.
        progress: called with each step in words.
        device: of torch, `cpu` or `cuda`.

    Raises:
        BuildError: an output has a size that the engine cannot cut off padded rows by.
    """
    _check_outputs(plan.master.inputs, plan.master.outputs)
    progress("importing the master")
    module = fx_graph(plan.master_path, plan.key.precision)
    if num_known := load_artifacts(plan.compile_cache):
        progress(f"{num_known} graphs are known from earlier builds")
    sorter = WeightSorter(plan.master_path)
    artifacts = []
    for number, bucket in enumerate(plan.key.buckets):
        progress(f"compiling kernels for {bucket.label}")
        # A CUDA graph has one shape: smaller requests are padded to it.
        sizes = {name: dim.max for name, dim in bucket.dims.items()}
        found = _rewritten(plan, module, sizes, device)
        file = f"bucket{number}.bin"
        weights = _compile_bucket(found.program, config, workspace / file)
        keep_artifact(plan.compile_cache, workspace / file)
        refs = tuple(sorter.ref(n, w, found.joined.get(n, ())) for n, w in weights.items())
        artifacts.append(BucketArtifact(file=file, bucket=bucket, weights=refs))
    sorter.save(workspace / CONSTANTS)
    (workspace / INDEX).write_bytes(
        ArtifactIndex(artifacts=tuple(artifacts), pads=plan.key.pads).canonical_json()
    )
    return BuildOutput(
        files={path.name: path for path in sorted(workspace.iterdir())}, needs_master=True
    )


def _rewritten(
    plan: BuildSpec, module: torch.fx.GraphModule, sizes: Sizes, device: str
) -> Rewritten:
    def export(graph: torch.fx.GraphModule) -> ExportedProgram:
        return export_static(graph, plan.master.inputs, sizes, device)

    return rewritten(export(module), rewrites_for(device), export)


def _compile_bucket(
    program: ExportedProgram, config: Mapping[str, Any], target: Path
) -> dict[str, torch.Tensor]:
    """Compile and save one program; its weight arguments by name, in order."""
    weights = lifted_weights(program)
    assert program.example_inputs is not None
    artifact = compile_static(program, [*weights.values(), *program.example_inputs[0]], config)
    artifact.save(path=str(target), format="binary")
    return weights


def compile_static(
    program: ExportedProgram, arguments: list[Any], config: Mapping[str, Any]
) -> Any:
    """Inductor's artifact of a program for the sizes of its arguments, weights first.

    Args:
        program: whose weights are arguments (`lifted_weights`).
        arguments: example tensors, weights first; their sizes are compiled in.
        config: Inductor's options by name.
    """
    from torch._inductor import standalone_compile

    with torch.no_grad():
        return standalone_compile(
            program.graph_module,
            arguments,
            dynamic_shapes="from_example_inputs",
            options={"config_patches": dict(config)},
        )


class WeightSorter:
    """Decides for each weight whether the master has it; keeps those that it has not.

    Weights are known by their values after the cast: typing a graph may rename them.
    """

    def __init__(self, master_path: Path) -> None:
        self._master = MasterWeights(master_path)
        self._names: dict[torch.dtype, dict[_Content, str]] = {}
        self._own: dict[str, torch.Tensor] = {}

    def ref(self, name: str, tensor: torch.Tensor, parts: Sequence[torch.Tensor] = ()) -> WeightRef:
        """The reference for one weight argument.

        Args:
            name: of the argument in the exported program.
            tensor: its values, on any device.
            parts: the weights that it joins along its last axis; empty where it is one.
        """
        values = tensor.detach().cpu()
        datatype = DATATYPE_FROM_NUMPY[array_over(values).dtype]
        joined = tuple(self._in_master(part.detach().cpu()) for part in parts)
        if joined and None not in joined:
            refs = tuple(ref for ref in joined if ref is not None)
            return WeightRef(name=name, datatype=datatype, is_in_master=True, parts=refs)
        if known := self._in_master(values):
            return known
        # With the digest: buckets are exported one by one, and may call different values the same.
        key = f"{name}-{_content(values).sha256}"
        self._own[key] = values
        return WeightRef(name=key, datatype=datatype, is_in_master=False)

    def _in_master(self, values: torch.Tensor) -> WeightRef | None:
        initializer = self._names_of(values.dtype).get(_content(values))
        if initializer is None:
            return None
        datatype = DATATYPE_FROM_NUMPY[array_over(values).dtype]
        order = () if values.is_contiguous() else axes_in_memory(values)
        return WeightRef(name=initializer, datatype=datatype, is_in_master=True, order=order)

    def save(self, path: Path) -> None:
        """Write the engine's own constants; no file when there are none."""
        if self._own:
            torch.save(self._own, path)

    def _names_of(self, dtype: torch.dtype) -> dict["_Content", str]:
        """The master's initializers by what they hold when they are cast to a type."""
        if dtype not in self._names:
            weights = ((name, self._master.array(name)) for name in self._master)
            self._names[dtype] = {_content(converted(w, dtype)): name for name, w in weights}
        return self._names[dtype]


class _Content(NamedTuple):
    shape: tuple[int, ...]
    sha256: str


def _content(tensor: torch.Tensor) -> _Content:
    array = array_over(tensor.contiguous())
    return _Content(tuple(tensor.shape), hashlib.sha256(array.tobytes()).hexdigest())


def _check_outputs(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    """Refuse outputs with a dynamic dimension that no input has: they could not be unpadded."""
    known = {dim for spec in inputs for dim in spec.shape}
    for spec in outputs:
        for dim in spec.shape:
            if isinstance(dim, str) and dim not in known:
                raise BuildError(
                    f"output '{spec.name}' has dimension '{dim}', which no input has: its padded "
                    "part cannot be cut off; name it after an input's dimension in the master"
                )
