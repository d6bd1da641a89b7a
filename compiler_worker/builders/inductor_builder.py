"""Build half of kind `inductor`: C++ for CPUs, Triton kernels for GPUs."""

import shutil
from pathlib import Path
from typing import Any

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.builders.failures import build_errors, recorded_warnings
from compiler_worker.builders.hosts import PORTABLE_CPU, foreign_cpu_reason, foreign_cuda_reason
from compiler_worker.builders.inductor_packages import CXX
from compiler_worker.builders.quantiser import quantiser_options, quantiser_reason
from compiler_worker.builders.typed_graphs import check_ranges
from compiler_worker.progress import Progress
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.compile_caches import CacheScope
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision
from services.engines.device.toolchain import installed_toolchain, missing_reason
from services.engines.shapes import union_of

# torch's name of the setting, and the build key's.
_MAX_AUTOTUNE = "max_autotune"
# Measured in tests/benchmarks/results/gpu/fp8_h200_202611.md.
_CUDA_REASONS = {
    Precision.INT8: "on a GPU Inductor's int8 products write 32 bits, and gain nothing over fp16: "
    "use kind tensorrt",
    Precision.INT8_WEIGHT_ONLY: "on a GPU Inductor would bring int8 weights back to floats in "
    "every call: use fp16 or bf16",
}
# Measured in tests/benchmarks/results/proofs/inductor_int8_cpu_202611.md.
_CPU_REASONS = {
    Precision.FP16: "fp16 on a CPU is slower than fp32: use bf16 where the generation has it",
    Precision.FP8: "Inductor has no fp8 products on a CPU and would compute in floats: use int8",
    Precision.INT8_WEIGHT_ONLY: "torch's products with int8 weights take 2.6 times as long as "
    "plain bf16 ones at 16 rows, and longer at more: use int8, or kind onnxruntime or openvino",
}


class InductorBuilder(Builder):
    """Builder for x86-64 CPUs from AVX2 on (fp32, bf16, int8), the local GPU (floats, fp8)."""

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        if reason := missing_reason("torch"):
            return reason
        if generation.platform is Platform.CUDA:
            reason = _cuda_precision_reason(generation, precision) or missing_reason("triton")
            return reason or foreign_cuda_reason(generation)
        return _cpu_precision_reason(generation, precision) or _cpu_host_reason(generation)

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """Inductor settings that differ from its defaults, and what is done to the graph before."""
        from compiler_worker.fx_rewrites.names import rewrites_for

        settings = {name: str(value) for name, value in inductor_config(generation).items()}
        names = rewrites_for(generation.platform, precision)
        if generation.platform is Platform.CPU:
            settings["packed"] = "convolutions"
        return {**settings, "rewrites": " ".join(names), **quantiser_options(precision)}

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """The exact build of torch; on CUDA also Triton and the CUDA runtime."""
        is_cuda = generation.platform is Platform.CUDA
        names = ("torch", "triton", "cuda") if is_cuda else ("torch",)
        installed = installed_toolchain(generation.platform)
        return {name: installed[name] for name in names if name in installed}

    def is_device_bound(self, generation: Generation) -> bool:
        """On CUDA: launch configurations are tuned on the device that builds."""
        return generation.platform is Platform.CUDA

    def cache_scope(self, key: BuildKey) -> CacheScope | None:
        """A generation's: torch's own keys name the device where its results depend on it."""
        return CacheScope(compiler=key.kind, generation=key.generation, toolchain=key.toolchain)

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Import, export and compile."""
        check_ranges(plan.master.inputs, union_of(plan.key.buckets))
        with recorded_warnings() as findings, build_errors("Inductor failed"):
            built = _compile(plan, generation, workspace, progress)
        return built.model_copy(update={"findings": tuple(findings)})


def inductor_config(generation: Generation, *, is_tuned: bool = False) -> dict[str, Any]:
    """Settings of `torch._inductor.config` for a generation; `is_tuned` searches for longer.

    On CPUs the instruction set is pinned: by default code is generated for whatever
    processor builds. Freezing lets oneDNN prepack weights, which is worth 2x on small
    shapes; so a CPU engine carries its weights, in a layout that is not the master's. The
    number of threads is read when the engine runs, not taken from the machine that builds.
    """
    if generation.platform is Platform.CUDA:
        # The runner captures the whole engine itself, once per bucket.
        return {"triton.cudagraphs": False, _MAX_AUTOTUNE: is_tuned}
    is_avx2 = generation == PORTABLE_CPU
    return {
        "cpp.simdlen": 256 if is_avx2 else 512,
        "cpp.march": "x86-64-v3" if is_avx2 else "x86-64-v4",
        "cpp.dynamic_threads": True,
        # The flags of this machine were compared; test programs would only repeat it, slowly.
        "cpp.vec_isa_ok": True,
        "freezing": True,
        **({_MAX_AUTOTUNE: True} if is_tuned else {}),
    }


def _compile(
    plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
) -> BuildResult:
    is_tuned = plan.key.builder_options.get(_MAX_AUTOTUNE) == str(True)
    config = inductor_config(generation, is_tuned=is_tuned)
    if generation.platform is Platform.CPU:
        from compiler_worker.builders.inductor_packages import build_package

        return build_package(plan, config, workspace, progress)
    from compiler_worker.builders.inductor_artifacts import build_artifacts

    return build_artifacts(plan, config, workspace, progress, device="cuda")


def _cuda_precision_reason(generation: Generation, precision: Precision) -> str:
    if precision is Precision.FP8:
        return missing_instructions(generation, precision) or quantiser_reason(precision)
    return _CUDA_REASONS.get(precision, "")


def _cpu_precision_reason(generation: Generation, precision: Precision) -> str:
    return (
        _CPU_REASONS.get(precision, "")
        or missing_instructions(generation, precision)
        or quantiser_reason(precision)
    )


def _cpu_host_reason(generation: Generation) -> str:
    if reason := foreign_cpu_reason(generation):
        return reason
    if shutil.which(CXX) is None:
        return f"no C++ compiler: {CXX} is not on PATH (Debian: apt install g++)"
    return ""
