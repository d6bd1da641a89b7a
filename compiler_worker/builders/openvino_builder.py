"""Build half of kind `openvino`: proves that OpenVINO takes the graph.

In fp32 and bf16 it reads the master itself, so nothing is published; a quantised graph is.
"""

from pathlib import Path

from compiler_worker.builders.base import Builder, BuildResult, BuildSpec
from compiler_worker.builders.failures import build_errors
from compiler_worker.builders.quantiser import quantiser_options, quantiser_reason
from compiler_worker.builders.typed_graphs import typed_files
from compiler_worker.progress import Progress
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision
from services.engines.device.toolchain import installed_version, missing_reason
from services.engines.openvino_engine import (
    PRECISION_HINT,
    PRECISION_HINTS,
    TYPED_MODEL,
    compile_for_cpu,
    precision_hint,
)


class OpenvinoBuilder(Builder):
    """Builder for CPU generations: fp32, bf16, int8."""

    is_ai_onnx_only = True

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        if generation.platform is not Platform.CPU:
            return f"kind openvino is for CPUs, not for {generation}"
        if precision in (Precision.FP16, Precision.FP8):
            return f"kind openvino computes in fp32, bf16 or int8 on a CPU, not in {precision}"
        if precision is Precision.BF16 and (reason := missing_instructions(generation, precision)):
            return reason
        return missing_reason("openvino") or quantiser_reason(precision)

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """The precision hint: OpenVINO converts the fp32 master itself.

        Of a quantised graph it is for what is not quantised.
        """
        if precision.is_quantised:
            has_bf16 = not missing_instructions(generation, Precision.BF16)
            rest = Precision.BF16 if has_bf16 else Precision.FP32
            return {PRECISION_HINT: PRECISION_HINTS[rest], **quantiser_options(precision)}
        return {PRECISION_HINT: PRECISION_HINTS[precision]}

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """OpenVINO compiles at load, so its version is all that counts."""
        return {"openvino": installed_version("openvino")}

    def runs_master(self, precision: Precision) -> bool:
        """In floats: it converts the master when it compiles it."""
        return not precision.is_quantised

    def _build(
        self, plan: BuildSpec, generation: Generation, workspace: Path, progress: Progress
    ) -> BuildResult:
        """Compile the graph once for this processor; publish the graph if it is quantised."""
        is_master = self.runs_master(plan.key.precision)
        files = {} if is_master else typed_files(plan, workspace / TYPED_MODEL, progress)
        progress("compiling the graph with OpenVINO")
        with build_errors("OpenVINO refused the graph"):
            path = files.get(TYPED_MODEL, plan.master_path)
            compile_for_cpu(path, precision_hint(plan.key))
        return BuildResult(files=files, needs_master=not files)
