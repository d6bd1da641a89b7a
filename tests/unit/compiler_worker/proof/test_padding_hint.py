"""Engines that are right at the sizes they are padded to, and wrong below, are told why."""

import pytest

from compiler_worker.proof.claim import padding_hint
from services.contracts.model.manifest import OutputCheck
from services.contracts.model.recipe import Bucket, DimRange

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=1, max=2), "words": DimRange(min=1, opt=16, max=32)}
)


def check(batch: int, words: int, fault: str = "") -> OutputCheck:
    return OutputCheck(
        output="y",
        bucket=BUCKET.label,
        sizes={"batch": batch, "words": words},
        rel_l2=0.0,
        max_abs=0.0,
        cosine_distance=0.0,
        fault=fault,
    )


def test_faults_below_the_largest_sizes_alone_are_of_padding() -> None:
    hint = padding_hint([check(2, 32), check(2, 1, "wrong"), check(1, 32)], [BUCKET])
    assert "padded" in hint
    assert "role: mask" in hint


@pytest.mark.parametrize(
    "checks",
    [
        [check(2, 32), check(1, 1)],
        [check(2, 32, "wrong"), check(1, 1, "wrong")],
        [check(2, 32, "wrong"), check(1, 1)],
        [check(1, 1, "wrong")],
        [],
    ],
    ids=["right", "wrong everywhere", "wrong at the largest", "the largest not met", "nothing met"],
)
def test_other_faults_are_not(checks: list[OutputCheck]) -> None:
    assert padding_hint(checks, [BUCKET]) == ""
