"""What a refusal of constant answers says to do, by the types of the inputs."""

import numpy as np
import pytest
from onnx import parser

from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.proof.claim import Claim
from compiler_worker.proof.power import Kept
from compiler_worker.proof.same_answers import same_answers
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
