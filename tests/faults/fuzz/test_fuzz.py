"""Hostile bytes at both ports of a real gateway and replica: `run.py` says what is sent."""

from random import Random

import pytest

from tests.faults.fuzz.cases import hostile_case
from tests.faults.fuzz.requests import wrong_in_answer
from tests.faults.fuzz.run import fuzz
from tests.integration.replica.published import ids_of, request_of

# The largest case takes a megabyte and a few are under way at once; bombs would take gigabytes.
_MAX_GROWTH_BYTES = 256 << 20


@pytest.mark.timeout(120)
async def test_every_hostile_request_and_connection_gets_the_right_answer() -> None:
    run = await fuzz(2000)
    assert run.faults == []
    assert run.answers.total() > 2000
    assert run.grown_bytes < _MAX_GROWTH_BYTES
    codes = {code for _, code in run.answers}
    assert codes >= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "ConnectionLostError"}


def test_a_seed_makes_the_same_case_again() -> None:
    assert hostile_case(Random(7)) == hostile_case(Random(7))
    assert len({hostile_case(Random(seed)).body for seed in range(20)}) > 15


def test_a_wrong_answer_would_be_seen() -> None:
    from services.pb import open_inference_v2_pb2 as pb

    body = request_of(ids_of(1, 2), "r")
    wrong = pb.ModelInferResponse(model_name="toy", id="r")
    for name, shape in (("tokens", (1, 2, 4)), ("pooled", (1, 4))):
        wrong.outputs.add(name=name, datatype="FP32", shape=shape)
        wrong.raw_output_contents.append(bytes(4 * shape[-1] * (shape[1] if len(shape) > 2 else 1)))
    assert "other values" in wrong_in_answer(body, wrong.SerializeToString())
    wrong.id = "s"
    assert "id 's'" in wrong_in_answer(body, wrong.SerializeToString())
