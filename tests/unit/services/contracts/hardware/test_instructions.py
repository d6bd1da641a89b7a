"""Which generations have instructions for a precision."""

import pytest

from services.contracts.hardware.facts import Generation
from services.contracts.hardware.instructions import missing_instructions
from services.contracts.hardware.kinds import Precision

# The precisions that each has instructions for, beside those that need none.
HAVE = {
    "cpu-x86_64-v2": [],
    "cpu-x86_64-v3": [],
    "cpu-x86_64-avx512": [],
    "cpu-x86_64-avx512_vnni": ["int8"],
    "cpu-x86_64-avx512_bf16": ["bf16", "int8"],
    "cpu-x86_64-amx": ["bf16", "int8"],
    "cpu-aarch64-generic": [],
    "cuda-sm61": [],
    "cuda-sm70": ["fp16"],
    "cuda-sm75": ["fp16", "int8"],
    "cuda-sm80": ["fp16", "bf16", "int8"],
    "cuda-sm89": ["fp16", "bf16", "int8", "fp8"],
    "cuda-sm90": ["fp16", "bf16", "int8", "fp8"],
    "cuda-sm120": ["fp16", "bf16", "int8", "fp8"],
}


@pytest.mark.parametrize("generation", HAVE)
def test_what_a_generation_has_instructions_for(generation: str) -> None:
    parsed = Generation.parse(generation)
    found = [each.value for each in Precision if not missing_instructions(parsed, each)]
    assert sorted(found) == sorted(["fp32", "int8_weight_only", *HAVE[generation]])


@pytest.mark.parametrize(
    ("generation", "precision", "words"),
    [
        (
            "cpu-x86_64-v3",
            Precision.BF16,
            "cpu-x86_64-v3 has no bf16 instructions: AVX512_BF16 or AMX is needed",
        ),
        (
            "cuda-sm75",
            Precision.BF16,
            "cuda-sm75 has no bf16 instructions, which begin with SM 8.0",
        ),
        (
            "cpu-aarch64-generic",
            Precision.INT8,
            "cpu-aarch64-generic has no int8 instructions that Smelt knows of",
        ),
    ],
)
def test_what_is_missing_is_named(generation: str, precision: Precision, words: str) -> None:
    assert missing_instructions(Generation.parse(generation), precision) == words
