"""Build half of kind `xla`: StableHLO and an executable of XLA for each bucket.

torch exports the imported graph, torchax writes it in JAX's functions, JAX exports those as
StableHLO, and XLA compiles that. Weights are arguments, and stay with the master.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.builders.failures import build_errors, recorded_warnings
from compiler_worker.builders.hosts import foreign_cpu_reason, foreign_cuda_reason
from compiler_worker.builders.typed_graphs import check_outputs, check_ranges
from compiler_worker.progress import Progress
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision
from services.engines.device.toolchain import (
    distribution_version,
    installed_toolchain,
    installed_version,
    missing_reason,
)
from services.engines.shapes import union_of
from services.engines.xla_engine import STABLEHLO, compile_stablehlo, start_jax

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from compiler_worker.fx_rewrites.rewrite import Rewritten

_TORCHAX = "torchax"
# Kernels that others need are of CUDA alone, and XLA has its own: these are all that it takes.
_REWRITTEN_FOR = "cpu"


class XlaBuilder(Builder):
    """Builder for x86-64 CPUs from AVX2 on (fp32, bf16) and for the local GPU (floats)."""

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        if precision.is_quantised:
            return "XLA would compute a quantised graph in floats, with rounding on top"
        if reason := missing_reason("jax") or missing_reason("torch") or _torchax_reason():
            return reason
        if generation.platform is Platform.CUDA:
            return missing_reason("jax_cuda") or foreign_cuda_reason(generation)
        if precision is Precision.FP16:
            return "fp16 on a CPU is slower than fp32: use bf16 where the generation has it"
        return missing_instructions(generation, precision) or foreign_cpu_reason(generation)

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """What is done to the graph before XLA has it, and by which versions.

        torch and torchax are no part of the toolchain: who runs the engine does not need them.
        """
        from compiler_worker.fx_rewrites.names import rewrites_for

        return {
            "rewrites": " ".join(rewrites_for(_REWRITTEN_FOR)),
            "lowering": f"torch {installed_version('torch')}, "
            f"{_TORCHAX} {distribution_version(_TORCHAX)}",
        }

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """JAX and XLA, which is in jaxlib; on CUDA also its plugin."""
        is_cuda = generation.platform is Platform.CUDA
        names = ("jaxlib", "jax", "jax_cuda") if is_cuda else ("jaxlib", "jax")
        installed = installed_toolchain(generation.platform)
        return {name: installed[name] for name in names if name in installed}

    def is_device_bound(self, generation: Generation) -> bool:
        """On CUDA: XLA tries kernels on the device that builds."""
        return generation.platform is Platform.CUDA

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Import, lower and compile each bucket at its largest sizes.

        Raises BuildError also where an output has a size of its own, or torchax lacks an operation.
        """
        check_ranges(plan.master.inputs, union_of(plan.key.buckets))
        check_outputs(plan.master.inputs, plan.master.outputs)
        with recorded_warnings() as findings, build_errors("XLA failed"):
            built = _build_buckets(plan, generation, workspace, progress)
        return built.model_copy(update={"findings": tuple(findings)})


def _build_buckets(
    plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
) -> BuildResult:
    from compiler_worker.builders.bucket_artifacts import build_buckets
    from compiler_worker.builders.graphs import fx_graph
    from compiler_worker.fx_rewrites.names import rewrites_for

    def compile_bucket(found: "Rewritten", target: Path) -> "dict[str, torch.Tensor]":
        weights, stablehlo = _lowered(found.program, plan.key.precision, generation.platform)
        target.with_suffix(STABLEHLO).write_bytes(stablehlo)
        target.write_bytes(_serialised(stablehlo, generation))
        return weights

    progress("importing the master")
    module = fx_graph(plan.master_path, plan.key.precision)
    rewrites = rewrites_for(_REWRITTEN_FOR)
    # On a CPU for GPUs too: what is exported names no device to XLA.
    return build_buckets(plan, module, rewrites, compile_bucket, workspace, progress, device="cpu")


def _lowered(
    program: "ExportedProgram", precision: Precision, platform: Platform
) -> "tuple[dict[str, torch.Tensor], bytes]":
    """The weights by name, and the StableHLO of a function of them and the inputs."""
    device = start_jax(platform)

    import jax
    import jax.export

    with removed_overloads():
        import torchax.ops.jaten  # noqa: F401 - knows the operations
        from torchax.export import exported_program_to_jax
        from torchax.ops.mappings import t2j_dtype

    names, weights, function = exported_program_to_jax(program, export_raw=True)
    assert program.example_inputs is not None
    arguments = [*weights, *program.example_inputs[0]]
    shapes = [jax.ShapeDtypeStruct(tuple(each.shape), t2j_dtype(each.dtype)) for each in arguments]

    def flat(*given: Any) -> tuple[Any, ...]:
        return tuple(function(list(given[: len(weights)]), given[len(weights) :]))

    # On a GPU XLA takes TF32 for products in fp32 by default.
    exactness = "highest" if precision is Precision.FP32 else "default"
    with jax.default_device(device), jax.default_matmul_precision(exactness):
        exported = jax.export.export(jax.jit(flat), platforms=[platform.value])(*shapes)
    return dict(zip(names, weights, strict=True)), bytes(exported.serialize())


def _serialised(stablehlo: bytes, generation: Generation) -> bytes:
    from jax.experimental.serialize_executable import serialize

    executable = compile_stablehlo(stablehlo, generation, start_jax(generation.platform))
    content: bytes = serialize(executable)[0]
    return content


@contextmanager
def removed_overloads() -> Iterator[None]:
    """Within it torchax 0.0.13 can be imported beside torch 2.13.

    It lists overloads with named dimensions, which torch has no more (google/torchax#101); none of
    them is in any graph of ours.
    """
    import torch

    packet: Any = torch._ops.OpOverloadPacket  # noqa: SLF001
    found = packet.__getattr__

    def overload(self: Any, name: str) -> Any:
        try:
            return found(self, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return f"{self} without {name}"

    packet.__getattr__ = overload
    try:
        yield
    finally:
        packet.__getattr__ = found


def _torchax_reason() -> str:
    has_torchax = distribution_version(_TORCHAX)
    return "" if has_torchax else f"the Python package {_TORCHAX} is not installed"
