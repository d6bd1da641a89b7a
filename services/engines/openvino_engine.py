"""Run half of kind `openvino`: a graph, compiled by OpenVINO's CPU plugin when it is loaded.

In fp32 and bf16 it is the master, and nothing is published: OpenVINO reads that as fast as its
own format, its weights stay shared with every other engine, and it picks kernels for the very
processor that loads it. A quantised engine is its quantised graph.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.engines.base import LoadSpec
from services.engines.compatibility import refuse_incompatible
from services.engines.device.toolchain import missing_reason
from services.engines.guarded import GuardedEngine, library_errors
from services.engines.request_check import Sizes

if TYPE_CHECKING:
    import openvino

TYPED_MODEL = "typed.onnx"
PRECISION_HINT = "INFERENCE_PRECISION_HINT"
# Without a hint OpenVINO takes bf16 wherever the processor has it, whatever was asked for.
PRECISION_HINTS = {Precision.FP32: "f32", Precision.BF16: "bf16"}


class OpenvinoEngine(GuardedEngine):
    """One compiled model with one infer request, for arrays of any shape."""

    name = "OpenVINO"

    def __init__(self, spec: LoadSpec, model: "openvino.CompiledModel") -> None:
        super().__init__(spec.manifest.inputs, spec.manifest.outputs, spec.manifest.buckets)
        self._model: openvino.CompiledModel | None = model
        self._request: openvino.InferRequest | None = model.create_infer_request()

    @classmethod
    def unavailable_reason(cls) -> str:
        """Why OpenVINO cannot be used here, or ""."""
        return missing_reason("openvino")

    @classmethod
    def load(cls, spec: LoadSpec) -> Self:
        """Read and compile the published graph, the master when there is none."""
        refuse_incompatible(spec, EngineKind.OPENVINO)
        has_own_model = TYPED_MODEL in spec.manifest.files
        path = spec.directory / TYPED_MODEL if has_own_model else spec.master_path
        with library_errors(f"OpenVINO failed to load {path.name}"):
            hint = precision_hint(spec.manifest.key)
            return cls(spec, compile_for_cpu(path, hint, spec.num_threads))

    def num_kernels(self, _: Mapping[str, Array]) -> int:
        """Layers that depend on an input: those of weights alone ran when it was compiled."""
        assert self._model is not None
        is_layer: dict[str, bool] = {}
        for node in self._model.get_runtime_model().get_ordered_ops():
            kind = node.get_type_name()
            sources = {value.get_node().get_friendly_name() for value in node.input_values()}
            if kind == "Parameter" or sources & is_layer.keys():
                is_layer[node.get_friendly_name()] = kind == "ExecutionNode"
        return sum(is_layer.values())

    def _compute(self, arrays: list[Array], sizes: Sizes) -> Sequence[Array]:
        assert self._request is not None
        try:
            # Inputs are shared: they are contiguous and outlive this call. Not by `infer`: with one
            # thread OpenVINO 2026.4.1 hides there that a run failed, and what the outputs hold is
            # the answer to the request before.
            self._request.start_async(dict(enumerate(arrays)), share_inputs=True)
            self._request.wait()
        finally:
            # It would keep them until the next run; they may lie in memory that others wait for.
            self._request._inputs_data = None  # noqa: SLF001
        tensors = map(self._request.get_output_tensor, range(len(self._outputs)))
        results: list[Array] = [tensor.data.copy() for tensor in tensors]
        # Without a numpy type for bfloat16, its bits come as float16.
        return [
            result.view(NUMPY_FROM_DATATYPE["BF16"]) if spec.datatype == "BF16" else result
            for spec, result in zip(self._outputs, results, strict=True)
        ]

    def _release(self) -> None:
        self._request = None
        self._model = None


def precision_hint(key: BuildKey) -> str:
    """What floats are computed in; for a quantised engine its build options have it."""
    return PRECISION_HINTS.get(key.precision) or key.builder_options[PRECISION_HINT]


def compile_for_cpu(path: Path, hint: str, num_threads: int = 0) -> "openvino.CompiledModel":
    """Compile an ONNX file for this processor.

    Args:
        path: of the ONNX file, with its weights beside it.
        hint: value of OpenVINO's `INFERENCE_PRECISION_HINT`, as "f32".
        num_threads: of one inference; 0 leaves it to OpenVINO.
    """
    import openvino

    config: dict[str, str | int] = {
        "PERFORMANCE_HINT": "LATENCY",
        # Replicas of one host would all be bound to its first processors.
        "ENABLE_CPU_PINNING": False,
        PRECISION_HINT: hint,
    }
    if num_threads:
        config["INFERENCE_NUM_THREADS"] = num_threads
    core = openvino.Core()
    return core.compile_model(core.read_model(path), "CPU", config)
