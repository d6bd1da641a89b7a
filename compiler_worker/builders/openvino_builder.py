"""Build half of kind `openvino`: proves that OpenVINO takes the master, publishes nothing."""

from pathlib import Path

from compiler_worker.builders.base import BuildOutput, BuildPlan
from compiler_worker.builders.failures import build_errors, refuse
from compiler_worker.builders.hosts import bf16_reason
from compiler_worker.progress import Progress
from services.contracts.hardware import Generation, Platform
from services.contracts.kinds import Precision
from services.engines.openvino_engine import PRECISION_HINTS, compile_for_cpu
from services.engines.toolchain import installed_version, missing_reason


class OpenvinoBuilder:
    """Builder for CPU generations, fp32 and bf16."""

    def unavailable_reason(self, generation: Generation, precision: Precision) -> str:
        """Why this machine cannot build that engine, or ""."""
        if generation.platform is not Platform.CPU:
            return f"kind openvino is for CPUs, not for {generation}"
        if precision not in PRECISION_HINTS:
            return f"kind openvino computes in fp32 or bf16 on a CPU, not in {precision}"
        if precision is Precision.BF16 and (reason := bf16_reason(generation)):
            return reason
        return missing_reason("openvino")

    def options(self, generation: Generation, precision: Precision) -> dict[str, str]:
        """The precision hint: OpenVINO converts the fp32 master itself."""
        return {"INFERENCE_PRECISION_HINT": PRECISION_HINTS[precision]}

    def toolchain(self, generation: Generation) -> dict[str, str]:
        """OpenVINO compiles at load, so its version is all that counts."""
        return {"openvino": installed_version("openvino")}

    def is_device_bound(self, generation: Generation) -> bool:
        """No: kernels are chosen where the engine is loaded."""
        return False

    def build(self, plan: BuildPlan, workspace: Path, progress: Progress) -> BuildOutput:
        """Compile the master once for this processor and keep nothing of it."""
        generation = Generation.parse(plan.key.generation)
        refuse(self.unavailable_reason(generation, plan.key.precision), "an openvino engine")
        progress("compiling the master with OpenVINO")
        with build_errors("OpenVINO refused the master"):
            compile_for_cpu(plan.master_path, PRECISION_HINTS[plan.key.precision])
        return BuildOutput(files={}, needs_master=True)
