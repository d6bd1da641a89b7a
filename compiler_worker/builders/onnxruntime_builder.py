"""Build half of kind `onnxruntime`: proves that ONNX Runtime takes the graph.

In fp32 the session reads the master itself, so nothing is published. On CPUs in int8 and on
CUDA in fp16 the typed graph is, because ONNX Runtime has no precision switch of its own.
"""

from pathlib import Path

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.builders.failures import build_errors
from compiler_worker.builders.hosts import foreign_cuda_reason
from compiler_worker.builders.quantiser import quantiser_options, quantiser_reason
from compiler_worker.builders.typed_graphs import typed_files
from compiler_worker.progress import Progress
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import Precision
from services.engines.device.toolchain import installed_version, missing_reason
from services.engines.onnxruntime_engine import TYPED_MODEL, open_session, provider_of

_ADDS_CASTS = "ONNX Runtime's CPU kernels compute in fp32: {} would only add casts"
_CPU_REASONS = {
    Precision.FP16: _ADDS_CASTS.format(Precision.FP16),
    Precision.BF16: _ADDS_CASTS.format(Precision.BF16),
    Precision.FP8: _ADDS_CASTS.format(Precision.FP8),
}


class OnnxruntimeBuilder(Builder):
    """Builder for CPU in fp32 and int8, and for CUDA where the CUDA provider is installed."""

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        if reason := missing_reason("onnxruntime"):
            return reason
        if generation.platform is Platform.CUDA:
            return _cuda_reason(generation, precision)
        return _CPU_REASONS.get(precision, "") or quantiser_reason(precision)

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """Session options that choose kernels."""
        is_cuda = generation.platform is Platform.CUDA
        # TF32 is on by default there, and keeps 10 bits of an fp32 product.
        provider = {"provider": "cuda", "use_tf32": "0"} if is_cuda else {"provider": "cpu"}
        sums = {"x64quantprecision": "1"} if precision is Precision.INT8 else {}
        return {"deterministic": "1", **provider, **sums, **quantiser_options(precision)}

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """ONNX Runtime optimises at load, so its version is all that counts."""
        return {"onnxruntime": installed_version("onnxruntime")}

    def runs_master(self, precision: Precision) -> bool:
        """In fp32: the session optimises the master when it is opened."""
        return precision is Precision.FP32

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Open one session on the graph; publish the graph when it is not the master's."""
        progress("opening the graph with ONNX Runtime")
        is_master = self.runs_master(plan.key.precision)
        files = {} if is_master else typed_files(plan, workspace / TYPED_MODEL, progress)
        path = files.get(TYPED_MODEL, plan.master_path)
        with build_errors("ONNX Runtime refused the graph"):
            open_session(str(path), generation.platform)
        return BuildResult(files=files, needs_master=not files)


def _cuda_reason(generation: Generation, precision: Precision) -> str:
    if precision.is_quantised:
        return f"ONNX Runtime's CUDA provider computes {precision} graphs in floats: use tensorrt"
    if precision is Precision.BF16:
        return "ONNX Runtime's CUDA provider lacks many bf16 kernels: use fp16 or fp32"
    try:
        provider_of(Platform.CUDA)
    except RuntimeError as error:
        return str(error)
    return foreign_cuda_reason(generation)
