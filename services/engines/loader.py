"""From a kind to its run half."""

from typing import assert_never

from services.contracts.hardware.kinds import EngineKind
from services.engines.base import Engine


def engine_class(kind: EngineKind) -> type[Engine]:
    """The class that loads and runs engines of a kind; imports that kind's module only."""
    # Imports stand in the branches: a host need not have the libraries of other kinds.
    match kind:
        case EngineKind.TENSORRT:
            from services.engines.tensorrt_engine import TensorrtEngine

            return TensorrtEngine
        case EngineKind.INDUCTOR:
            from services.engines.inductor.inductor_engine import InductorEngine

            return InductorEngine
        case EngineKind.ONNXRUNTIME:
            from services.engines.onnxruntime_engine import OnnxruntimeEngine

            return OnnxruntimeEngine
        case EngineKind.OPENVINO:
            from services.engines.openvino_engine import OpenvinoEngine

            return OpenvinoEngine
        case EngineKind.XLA:
            from services.engines.xla_engine import XlaEngine

            return XlaEngine
        case _:
            # A new kind is an error of types until it has a branch.
            assert_never(kind)
