"""From a kind to its build half."""

from typing import Final, assert_never

from compiler_worker.builders.base import Builder
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision

# What was measured to be fastest comes first, in tests/benchmarks/results: precision_cpu and
# joint_runs_cpu; gpu_rewrites and gpu_minilm. Where two are near, the one that builds quicker.
_PROMISING: Final = {
    Platform.CPU: (
        (EngineKind.OPENVINO, Precision.INT8),
        (EngineKind.INDUCTOR, Precision.INT8),
        (EngineKind.OPENVINO, Precision.BF16),
        (EngineKind.INDUCTOR, Precision.BF16),
        (EngineKind.OPENVINO, Precision.INT8_WEIGHT_ONLY),
        (EngineKind.OPENVINO, Precision.FP32),
        (EngineKind.ONNXRUNTIME, Precision.FP32),
        (EngineKind.INDUCTOR, Precision.FP32),
    ),
    Platform.CUDA: (
        (EngineKind.INDUCTOR, Precision.FP16),
        (EngineKind.TENSORRT, Precision.FP16),
        (EngineKind.INDUCTOR, Precision.BF16),
        (EngineKind.TENSORRT, Precision.BF16),
        (EngineKind.TENSORRT, Precision.FP8),
        (EngineKind.TENSORRT, Precision.INT8),
        (EngineKind.ONNXRUNTIME, Precision.FP16),
        (EngineKind.INDUCTOR, Precision.FP32),
        (EngineKind.TENSORRT, Precision.FP32),
    ),
}


def build_place(key: BuildKey) -> int:
    """Where a key stands in the order of builds: what promises most on its generation is first.

    A replica leaves the fallback for the first engine that is proven, and changes again for each
    that is faster.
    """
    order = _PROMISING[Generation.parse(key.generation).platform]
    what = key.kind, key.precision
    return order.index(what) if what in order else len(order)


def builder_for(kind: EngineKind) -> Builder:
    """The builder of a kind; imports that kind's module only."""
    match kind:
        case EngineKind.TENSORRT:
            from compiler_worker.builders.tensorrt_builder import TensorrtBuilder

            return TensorrtBuilder()
        case EngineKind.INDUCTOR:
            from compiler_worker.builders.inductor_builder import InductorBuilder

            return InductorBuilder()
        case EngineKind.ONNXRUNTIME:
            from compiler_worker.builders.onnxruntime_builder import OnnxruntimeBuilder

            return OnnxruntimeBuilder()
        case EngineKind.OPENVINO:
            from compiler_worker.builders.openvino_builder import OpenvinoBuilder

            return OpenvinoBuilder()
        case EngineKind.XLA:
            from compiler_worker.builders.xla_builder import XlaBuilder

            return XlaBuilder()
        case _:
            assert_never(kind)
