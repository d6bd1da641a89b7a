"""From a kind to its build half."""

from typing import assert_never

from compiler_worker.builders.base import Builder
from compiler_worker.builders.expected_speed import EXPECTED
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.selection.fallback_verdict import rounding_fault


def build_place(key: BuildKey, version: ModelVersion) -> tuple[bool, int]:
    """Where a key stands in the order of builds: what promises most on its generation is first.

    A replica leaves the fallback for the first engine that is proven, and changes again for each
    that is faster. So what a proof is expected to refuse comes last.
    """
    order = EXPECTED[Generation.parse(key.generation).platform]
    found = (place for place, each in enumerate(order) if each[:2] == (key.kind, key.precision))
    return bool(rounding_fault(version.fallback_verdict, key.precision)), next(found, len(order))


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
