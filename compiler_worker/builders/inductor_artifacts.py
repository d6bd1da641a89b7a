"""Standalone Inductor artifacts: kernels only, one per bucket at its largest sizes.

An artifact holds what torch's own caches hold for its graph: code, kernels, tuned launch
configurations. Those of earlier builds are a cache of this one, whatever its weights are.
"""

import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from compiler_worker.builders.base import BuildResult, BuildSpec
from compiler_worker.builders.bucket_artifacts import build_buckets
from compiler_worker.builders.typed_graphs import check_outputs, planned_graph
from compiler_worker.fx_rewrites.names import rewrites_for
from compiler_worker.fx_rewrites.rewrite import Rewritten
from compiler_worker.onnx_to_fx import graph_module_from_onnx
from compiler_worker.precision.typed import typed_model
from compiler_worker.progress import Progress
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.store.kept_files import keep
from services.engines.torch_runtime.programs import lifted_weights

logger = logging.getLogger(__name__)

_SUFFIX = ".bin"


def build_artifacts(
    plan: BuildSpec, config: Mapping[str, Any], workspace: Path, progress: Progress, *, device: str
) -> BuildResult:
    """Compile every bucket at its largest sizes.

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
    typed = planned_graph(plan)
    # What is not quantised runs in what fp8 products write.
    rest = Precision.BF16 if plan.key.precision.is_quantised else Precision.FP32
    module = graph_module_from_onnx(typed_model(typed, rest))
    if num_known := load_artifacts(plan.compile_cache):
        progress(f"{num_known} graphs are known from earlier builds")

    def compile_bucket(found: Rewritten, target: Path) -> dict[str, torch.Tensor]:
        if plan.key.precision is Precision.FP8 and not found.counts.get("fp8_products"):
            raise UnsupportedGraphError(
                "no product of the graph has an fp8 kernel: a MatMul or Gemm with constant weights "
                "is wanted, both of its sizes multiples of 16; build it in fp16"
            )
        weights = lifted_weights(found.program)
        assert found.program.example_inputs is not None
        arguments = [*weights.values(), *found.program.example_inputs[0]]
        artifact = compile_static(found.program, arguments, config)
        artifact.save(path=str(target), format="binary")
        keep_artifact(plan.compile_cache, target)
        return weights

    rewrites = rewrites_for(device, plan.key.precision)
    return build_buckets(plan, module, rewrites, compile_bucket, workspace, progress, device=device)


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


def load_artifacts(folder: Path | None) -> int:
    """Give torch's caches what is in the folder; the number of artifacts. Bad ones are ignored."""
    if folder is None:
        return 0
    return sum(_load(path) for path in sorted(folder.glob(f"*{_SUFFIX}")))


def keep_artifact(folder: Path | None, saved: Path) -> None:
    """Keep a saved artifact for the builds to come, under the key that torch gives its graph."""
    if folder is None:
        return
    try:
        key, _ = _parts(saved.read_bytes())
        target = folder / f"{key}{_SUFFIX}"
        if not target.exists():
            keep(target, partial(shutil.copyfile, saved))
    except Exception as error:  # the engine is made; the next build compiles again
        logger.warning("%s is not kept: %s: %s", saved.name, type(error).__name__, error)


def _load(path: Path) -> bool:
    try:
        _, data = _parts(path.read_bytes())
        torch.compiler.load_cache_artifacts(data)
    except Exception as error:  # torch raises many types where it cannot read something
        logger.warning("%s is not used: %s: %s", path.name, type(error).__name__, error)
        return False
    return True


def _parts(saved: bytes) -> tuple[str, bytes]:
    """Key and cache entries of an artifact; raises ValueError for one of another torch."""
    from torch._inductor.codecache import torch_key

    # Private to torch, which has no public way to read an artifact without loading it.
    from torch.utils._appending_byte_serializer import BytesReader

    reader = BytesReader(saved)
    reader.read_bytes()  # what kind of artifact it is
    if reader.read_bytes() != torch_key():
        raise ValueError("it is of another build of torch")
    return reader.read_str(), reader.read_bytes()
