"""Engines that are right at the sizes they are padded to, and wrong below, are told why."""

import pytest

from compiler_worker.proof.padding_hint import padding_hint
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.input_values import InputValues
from services.contracts.model.manifest import MasterRecord, OutputCheck
from services.contracts.model.recipe import Bucket, DimRange, InputRole, Recipe
from tests.unit.services.controller import build_world as world

BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=1, max=2), "words": DimRange(min=1, opt=16, max=32)}
)


def master(mask: str = "") -> MasterRecord:
    """Its output has a vector for each word."""
    words = ("batch", "words")
    return world.MASTER.model_copy(
        update={
            "inputs": tuple(TensorSpec(name=n, datatype="INT64", shape=words) for n in ("x", "m")),
            "outputs": (TensorSpec(name="y", datatype="FP32", shape=(*words, 4)),),
            "input_values": {mask: InputValues(role=InputRole.MASK)} if mask else {},
        }
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
    checks = [check(2, 32), check(2, 1, "wrong"), check(1, 32)]
    hint = padding_hint(checks, [BUCKET], master(), Recipe())
    assert "padded" in hint
    assert "role: mask" in hint
    known = padding_hint(checks, [BUCKET], master("m"), Recipe())
    assert "role: mask" not in known
    assert "(outputs: {y: {valid_where: m}}), or give each size" in known


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
    assert padding_hint(checks, [BUCKET], master(), Recipe()) == ""
