"""Run half of kind `openvino`: the master, compiled by OpenVINO's CPU plugin when it is loaded.

Nothing is published for this kind. OpenVINO reads the master as fast as its own format, its
weights stay shared with every other engine, and it picks kernels for the very processor
that loads it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from services.contracts.kinds import EngineKind, Precision
from services.contracts.tensors import Array
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes
from services.engines.toolchain import missing_reason

if TYPE_CHECKING:
    import openvino

# Without a hint OpenVINO takes bf16 wherever the processor has it, whatever was asked for.
PRECISION_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16"}


class OpenvinoEngine(GuardedEngine):
    """One compiled model with one infer request; shapes are dynamic."""

    def __init__(self, spec: LoadSpec, model: "openvino.CompiledModel") -> None:
        super().__init__(spec.manifest.inputs, spec.manifest.outputs)
        self._model: openvino.CompiledModel | None = model
        self._request: openvino.InferRequest | None = model.create_infer_request()

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why OpenVINO cannot be used here, or ""."""
        return missing_reason("openvino")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Read and compile the master with the precision of the build key."""
        refuse_incompatible(spec, EngineKind.OPENVINO)
        with library_errors(f"OpenVINO failed to load {spec.master_path.name}"):
            hint = PRECISION_HINTS[spec.manifest.key.precision]
            return cls(spec, compile_for_cpu(spec.master_path, hint, spec.num_threads))

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        assert self._request is not None
        # Inputs are shared: they are contiguous and outlive this call.
        self._request.infer(dict(enumerate(arrays)), share_inputs=True)
        return [self._request.get_output_tensor(i).data.copy() for i in range(len(self._outputs))]

    def _release(self) -> None:
        self._request = None
        self._model = None


def compile_for_cpu(path: Path, hint: str, num_threads: int = 0) -> "openvino.CompiledModel":
    """Compile an ONNX file for this processor; 0 threads leaves it to the library."""
    import openvino

    config: dict[str, str | int] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": hint,
    }
    if num_threads:
        config["INFERENCE_NUM_THREADS"] = num_threads
    core = openvino.Core()
    return core.compile_model(core.read_model(path), "CPU", config)
