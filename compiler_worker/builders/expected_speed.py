"""What kinds of engines promise on a platform: the order of builds, and of `smelt advise`.

Times faster than the fallback, from the slowest to the fastest that was measured: of encoders with
attention, and of convolutions, in those files of tests/benchmarks/results. What was
timed beside Inductor fp32 counts as beside the fallback, which torch compiles too: joint_runs_cpu.
On GPUs it was torch.compile in fp16; the fallback computes in fp32, and is slower.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind, Precision

# What promises most comes first. Where two are near, the one that builds quicker.
_CPU = """
openvino    int8             1.76 3.0   3.6  8.4  precision_cpu
inductor    int8             1.54 2.05  3.15 6.5  precision_cpu
openvino    bf16             1.2  3.5   2.0  4.8  precision_cpu, demo_cpu
inductor    bf16             1.46 1.57  2.0  4.3  precision_cpu
openvino    int8_weight_only 1.5  1.95  2.05 4.9  precision_cpu
openvino    fp32             0.62 4.5   1.0  3.0  joint_runs_cpu, xla_cpu, precision_cpu
onnxruntime fp32             0.73 3.55  1.0  4.5  joint_runs_cpu, xla_cpu, precision_cpu
inductor    fp32             0.68 1.18  0.7  1.0  joint_runs_cpu, xla_cpu, precision_cpu
onnxruntime int8             0.2  1.43  0.7  1.8  precision_cpu
onnxruntime int8_weight_only 0.77 0.93  1.0  2.4  precision_cpu
xla         fp32             0.14 2.0   0.29 0.67 xla_cpu
"""
_CUDA = """
inductor    fp16             1.4  2.6   1.6  2.0  gpu_rewrites_h200
tensorrt    fp16             0 0 0 0 never timed
inductor    bf16             0 0 0 0 never timed
inductor    fp8              1.16 1.88 0 0   fp8_h200
tensorrt    bf16             0 0 0 0 never timed
tensorrt    fp8              0 0 0 0 never timed
tensorrt    int8             0 0 0 0 never timed
onnxruntime fp16             0 0 0 0 never timed
inductor    fp32             0 0 0 0 never timed
tensorrt    fp32             0 0 0 0 never timed
"""


class GraphClass(StrEnum):
    """What a graph spends its time on; without any product it is `other`: trees, strings."""

    ATTENTION = "attention"
    CONVOLUTIONS = "convolutions"
    DENSE = "dense"
    RECURRENT = "recurrent"
    OTHER = "other"


class ExpectedSpeed(NamedTuple):
    """A row: the lowest and the highest figure of each class, 0 where none was timed."""

    kind: EngineKind
    precision: Precision
    attention: tuple[float, float]
    convolutions: tuple[float, float]
    source: str


def _rows(table: str) -> Iterator[ExpectedSpeed]:
    for line in table.strip().splitlines():
        kind, precision, *figures, source = line.split(maxsplit=6)
        low, high, low_conv, high_conv = map(float, figures)
        spans = (low, high), (low_conv, high_conv)
        yield ExpectedSpeed(EngineKind(kind), Precision(precision), *spans, source)


EXPECTED: Final = {Platform.CPU: tuple(_rows(_CPU)), Platform.CUDA: tuple(_rows(_CUDA))}
