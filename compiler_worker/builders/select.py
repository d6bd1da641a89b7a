"""From a kind to its build half."""

from typing import Final, assert_never

from compiler_worker.builders.base import Builder
from services.contracts.hardware.kinds import EngineKind

# Quickest first: replicas leave the fallback as soon as anything is proven, and swap again for
# what is proven later and is faster.
BUILD_ORDER: Final = (
    EngineKind.ONNXRUNTIME,
    EngineKind.OPENVINO,
    EngineKind.TENSORRT,
    EngineKind.INDUCTOR,
)


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
        case _:
            assert_never(kind)
