"""The closed sets of the design: engine kinds and precisions."""

from enum import StrEnum


class EngineKind(StrEnum):
    """What made an engine; each member has one builder file and one engine file."""

    TENSORRT = "tensorrt"
    INDUCTOR = "inductor"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    XLA = "xla"

    @property
    def is_imported(self) -> bool:
        """Whether its engines are made of the importer's graph, which references come from too."""
        return self in (EngineKind.INDUCTOR, EngineKind.XLA)

    def pads_to_largest(self, *, is_cpu: bool) -> bool:
        """Whether an engine computes the largest sizes of a bucket, whatever it is given.

        Args:
            is_cpu: it runs on a CPU.
        """
        # Inductor: a CUDA graph of one shape for each bucket; on a CPU its kernels take any.
        return self is EngineKind.XLA or (self is EngineKind.INDUCTOR and not is_cpu)


class Precision(StrEnum):
    """What an engine's products are computed in; inputs and outputs keep the master's types.

    The quantised ones are as the field calls them. `int8` and `fp8` (E4M3): weights and
    activations of products, everything else in fp32 (bf16 in fp8 by Inductor).
    `int8_weight_only`: weights are kept in eight bits and computed with in fp32.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT8_WEIGHT_ONLY = "int8_weight_only"
    FP8 = "fp8"

    @property
    def is_calibrated(self) -> bool:
        """Whether scales of activations are needed, which come from a calibration set."""
        return self in (Precision.INT8, Precision.FP8)

    @property
    def is_quantised(self) -> bool:
        """Whether weights are kept in eight bits."""
        return self.is_calibrated or self is Precision.INT8_WEIGHT_ONLY
