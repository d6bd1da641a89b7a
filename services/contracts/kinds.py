"""The closed sets of the design: engine kinds and precisions."""

from enum import StrEnum


class EngineKind(StrEnum):
    """What made an engine; each member has one builder file and one engine file."""

    TENSORRT = "tensorrt"
    INDUCTOR = "inductor"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


class Precision(StrEnum):
    """The floating type that an engine computes in; inputs and outputs keep the master's types."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
