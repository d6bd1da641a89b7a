"""Which answers are constant, and what their refusal says to do, by the types of the inputs."""

import numpy as np
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.proof.claim import Claim
from compiler_worker.proof.power import Kept
from compiler_worker.proof.same_answers import alike_outputs, same_answers
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe
from tests.faults.judged import record_of

STRINGS = "strings that the model knows (inputs: {w: {values: [...]}})"
RANGES = "a range (inputs: {x: {low: ..., high: ...}}) of what is usual"


@pytest.mark.parametrize(
    ("inputs", "ways"),
    [
        ("float[N] x", RANGES),
        ("string[N] w", STRINGS),
        ("string[N] w, float[N] x", f"{STRINGS}, or {RANGES}"),
    ],
)
def test_strings_are_given_by_values_and_numbers_by_ranges(inputs: str, ways: str) -> None:
    graph = f"g ({inputs}) => (float[2] y) {{ y = Constant <value_floats = [1.0, 1.0]> () }}"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    claim = Claim(master=record_of(model), recipe=Recipe(), precision=Precision.FP32, buckets=())
    sample = Sample(bucket="b", sizes={}, variant=SampleVariant.FULL, inputs={})
    kept = [Kept(sample=sample, wanted={"y": np.ones(2, np.float32)}) for _ in range(2)]
    assert f"give samples, or {ways}, whose answers differ" in same_answers(claim, kept)


@pytest.mark.parametrize(("second", "is_alike"), [(3, False), (4, True)], ids=["same", "other"])
def test_of_the_same_sizes_another_shape_is_another_answer(second: int, *, is_alike: bool) -> None:
    """As of boxes that are found, all zero; of other sizes a shape may follow from them alone."""
    graph = "g (float[N] x) => (float[M] y) { w = NonZero (x) y = Cast <to = 1> (w) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}')
    kept = [
        Kept(
            sample=Sample(bucket="b", sizes={"N": size}, variant=SampleVariant.FULL, inputs={}),
            wanted={"y": np.zeros(num, np.float32)},
        )
        for size, num in ((3, 1), (3, 1), (second, 2))
    ]
    assert alike_outputs(record_of(model), Recipe(), kept) == ["y"] * is_alike
