"""What kinds of engines promise on a platform: the order of builds, and of `smelt advise`.

Times faster than the fallback, from the slowest to the fastest that was measured: of encoders with
attention, of convolutions and of small graphs, in those files of tests/benchmarks/results. What was
timed beside Inductor fp32 counts as beside the fallback, which torch compiles too: joint_runs_cpu.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from services.contracts.hardware.facts import Platform
from services.contracts.hardware.kinds import EngineKind, Precision

# What promises most comes first. Where two are near, the one that builds quicker.
_CPU = """
openvino    int8             1.76 3.0   3.6  8.4   0 0       precision_cpu
inductor    int8             1.54 2.05  3.15 6.5   0 0       precision_cpu
openvino    bf16             1.2  3.5   2.0  4.8   1.2  4.7  precision_cpu, demo_cpu, advice_zoo_cpu
inductor    bf16             1.46 1.57  2.0  4.3   0.83 1.45 precision_cpu, advice_zoo_cpu
openvino    int8_weight_only 1.5  1.95  2.05 4.9   0 0       precision_cpu
openvino    fp32             0.62 4.5   1.0  3.0   1.27 5.0  joint_runs_cpu, xla_cpu, advice_zoo_cpu
onnxruntime fp32             0.73 3.55  1.0  4.5   1.6  6.1  joint_runs_cpu, xla_cpu, advice_zoo_cpu
inductor    fp32             0.68 1.18  0.7  1.0   0.84 1.96 joint_runs_cpu, xla_cpu, advice_zoo_cpu
onnxruntime int8             0.2  1.43  0.7  1.8   0 0       precision_cpu
onnxruntime int8_weight_only 0.77 0.93  1.0  2.4   0 0       precision_cpu
xla         fp32             0.14 2.0   0.29 0.67  0 0       xla_cpu
"""
_CUDA = """
inductor    fp16             5.25 7.14  3.26 5.75  3.39 3.39 advice_zoo_h200
tensorrt    fp16             0 0 0 0 0 0 never timed
inductor    bf16             5.05 7.12  1.5  3.85  0 0 advice_zoo_h200
inductor    fp8              4.0  6.7   0 0 0 0 fp8_h200, beside fp16
tensorrt    bf16             0 0 0 0 0 0 never timed
tensorrt    fp8              0 0 0 0 0 0 never timed
tensorrt    int8             0 0 0 0 0 0 never timed
onnxruntime fp16             0 0 0 0 0 0 never timed
inductor    fp32             0 0        1.33 3.87  0 0 advice_zoo_h200
tensorrt    fp32             0 0 0 0 0 0 never timed
"""


class GraphClass(StrEnum):
    """What a graph spends its time on; without any product it is `other`: trees, strings.

    Of a small one that is calls of kernels, whatever these compute.
    """

    SMALL = "small"
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
    small: tuple[float, float]
    source: str


def _rows(table: str) -> Iterator[ExpectedSpeed]:
    for line in table.strip().splitlines():
        kind, precision, *figures, source = line.split(maxsplit=8)
        ends = iter(map(float, figures))
        attention, convolutions, small = zip(ends, ends, strict=True)
        yield ExpectedSpeed(
            kind=EngineKind(kind),
            precision=Precision(precision),
            attention=attention,
            convolutions=convolutions,
            small=small,
            source=source,
        )


EXPECTED: Final = {Platform.CPU: tuple(_rows(_CPU)), Platform.CUDA: tuple(_rows(_CUDA))}
