"""By how much an engine's outputs may differ from the float64 reference by default, and why.

Where the figures come from: one sentence encoder, 600 real sentences, eleven engines,
largest distance of any sample to a float64 run of the same weights; below the line, the
typed graphs of the same encoder on real sentences and drawn words, up to 128 tokens,
calibrated on 64 other such rows, and those of a ResNet-50, whichever is larger.

    engine                      rel L2         1 - cosine   max |error| / max |ref|
    fp32 (eager, four engines)  1.0e-6         8e-13        1e-6
    fp16                        1.6e-3         1.2e-6       2e-3
    bf16 (autocast to full)     1.5e-2         1.1e-4       1.7e-2
    -------------------------------------------------------------------------
    int8, weights only          5.5e-2         1.5e-3
    int8                        1.6e-1         1.3e-2       3.2e-1
    fp8 (E4M3)                  1.8e-1         8e-3

The bounds are those distances times 1.1 to 10. An fp32 engine may also err by ten times
what eager PyTorch itself errs in fp32 on the same inputs, because the error of a sum grows
with its length and depth: such a bound carries over to other models, a fixed one does not.
It never grows past the fp16 bound, so an ill-conditioned model cannot wave a fault through.

A master that rounds values to eight bits itself makes a step of the least shift: of 4096 rows of a
small one, ONNX Runtime's int8 kernels (which take biases in steps of their products) answer one in
fifty otherwise, by up to 2.4e-2 in rel L2. Its fp32 engine may err as eager PyTorch does when
all that is rounded lies a hundredth of a step higher or lower, up to the bound of int8.

Bounds of eight bits cannot show that a model is still good, only that its graph is not broken:
static rounding by smallest and largest value (1 - cosine 1.2e-1 on the same sentences) fails
them. A recipe with int8 or fp8 should name a task: an overlap of the ten nearest
of 0.92 and more goes with these distances.
"""

from dataclasses import dataclass

from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Tolerance

DEFAULT_TOLERANCES: dict[Precision, Tolerance] = {
    Precision.FP32: Tolerance(rel_l2=1e-5, max_abs=1e-5, cosine_distance=1e-9),
    Precision.FP16: Tolerance(rel_l2=5e-3, max_abs=1e-2, cosine_distance=1e-5),
    Precision.BF16: Tolerance(rel_l2=2e-2, max_abs=4e-2, cosine_distance=2e-4),
    Precision.INT8_WEIGHT_ONLY: Tolerance(rel_l2=1e-1, max_abs=2e-1, cosine_distance=5e-3),
    Precision.INT8: Tolerance(rel_l2=2e-1, max_abs=4e-1, cosine_distance=2e-2),
    Precision.FP8: Tolerance(rel_l2=2e-1, max_abs=4e-1, cosine_distance=2e-2),
}


@dataclass(frozen=True, kw_only=True)
class Together:
    """Bounds of all samples of an output together, none left open; see `recipe.Tolerance`."""

    column: float
    gain: float
    agreement: float


DEFAULTS_TOGETHER: dict[Precision, Together] = {
    Precision.FP32: Together(column=1e-3, gain=1e-4, agreement=0.999),
    Precision.FP16: Together(column=5e-2, gain=3e-3, agreement=0.99),
    Precision.BF16: Together(column=0.2, gain=1e-2, agreement=0.97),
    Precision.INT8_WEIGHT_ONLY: Together(column=0.4, gain=1.5e-2, agreement=0.95),
    Precision.INT8: Together(column=0.6, gain=5e-2, agreement=0.9),
    Precision.FP8: Together(column=0.6, gain=5e-2, agreement=0.9),
}
