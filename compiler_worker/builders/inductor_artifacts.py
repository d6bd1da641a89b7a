"""Standalone Inductor artifacts: kernels only, one per bucket at its largest sizes.

Weights are arguments. Those that are the master's own, up to a cast, or several of them side
by side, are named in the index and read from the master at load; the others (constants that
the typed graph made, convolutions with a normalisation folded in) are files of the engine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.artifact_cache import keep_artifact, load_artifacts
from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.graphs import export_static
from compiler_worker.builders.typed_graphs import check_outputs, planned_graph
from compiler_worker.builders.weight_sorter import WeightSorter
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.fx_rewrites.rewrite import Rewritten, rewritten
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.typed import typed_model
from compiler_worker.progress import Progress
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.engines.artifacts.artifact_index import (
    CONSTANTS,
    INDEX,
    ArtifactIndex,
    BucketArtifact,
)
from services.engines.request_check import Sizes
from services.engines.torch_runtime.programs import lifted_weights


def build_artifacts(
    plan: BuildSpec, config: Mapping[str, Any], workspace: Path, progress: Progress, *, device: str
) -> BuildResult:
    """Compile every bucket at its largest sizes and write the index.

    Args:
        plan: what to build.
        config: Inductor's options by name.
        workspace: where the artifacts, the index and the engine's own constants are written.
        progress: called with each step in words.
        device: of torch, `cpu` or `cuda`.

    Raises:
        BuildError: an output has a size that the engine cannot cut off padded rows by.
        UnsupportedGraphError: in fp8, no product of the graph has such a kernel.
    """
    check_outputs(plan.master.inputs, plan.master.outputs)
    progress("importing the master")
    module = _module(plan)
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
    return BuildResult(
        files={path.name: path for path in sorted(workspace.iterdir())}, needs_master=True
    )


def _module(plan: BuildSpec) -> torch.fx.GraphModule:
    typed = planned_graph(plan)
    # What is not quantised runs in what fp8 products write.
    rest = Precision.BF16 if plan.key.precision.is_quantised else Precision.FP32
    return graph_module_from_onnx(typed_model(typed, rest))


def _rewritten(
    plan: BuildSpec, module: torch.fx.GraphModule, sizes: Sizes, device: str
) -> Rewritten:
    def export(graph: torch.fx.GraphModule) -> ExportedProgram:
        return export_static(graph, plan.master.inputs, sizes, device)

    precision = plan.key.precision
    found = rewritten(export(module), rewrites_for(device, precision), export)
    if precision is Precision.FP8 and not found.counts.get("fp8_products"):
        raise UnsupportedGraphError(
            "no product of the graph has an fp8 kernel: a MatMul or Gemm with constant weights is "
            "wanted, both of its sizes multiples of 16; build it in fp16"
        )
    return found


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
