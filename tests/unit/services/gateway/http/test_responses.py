"""Messages of the protocol, as clients of HTTP get them."""

import asyncio
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, bytes_from_array
from services.gateway.http.requests import OutputForms
from services.gateway.http.responses import answer_from_response, plain
from services.pb import open_inference_v2_pb2 as pb


def response(**outputs: Any) -> pb.ModelInferResponse:
    """An answer with these arrays."""
    message = pb.ModelInferResponse(model_name="m", model_version="1")
    for name, array in outputs.items():
        datatype = DATATYPE_FROM_NUMPY[array.dtype]
        message.outputs.add(name=name, datatype=datatype, shape=array.shape)
        message.raw_output_contents.append(bytes_from_array(array))
    return message


async def test_outputs_in_json_and_binary() -> None:
    message = response(a=np.array([[1, 2]]), b=np.array([1.5], np.float32), c=np.array([3]))
    message.id = 'a "quoted" id'
    answer = await answer_from_response(
        message.SerializeToString(), OutputForms(True, frozenset("b"))
    )
    length = int(dict(answer.headers)[b"inference-header-content-length"])
    document = json.loads(answer.body[:length])
    assert document["id"] == message.id
    assert document["outputs"] == [
        {
            "name": "a",
            "datatype": "INT64",
            "shape": [1, 2],
            "parameters": {"binary_data_size": 16},
        },
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [1.5]},
        {"name": "c", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
    ]
    assert answer.body[length:] == np.array([1, 2, 3]).tobytes()


@pytest.mark.parametrize(
    ("array", "data"),
    [
        (np.array([True, False]), [True, False]),
        (np.array([1.5, 2], np.float16), [1.5, 2.0]),
        (np.array([1.5, 2], ml_dtypes.bfloat16), [1.5, 2.0]),
        (np.array([2**64 - 1], np.uint64), [2**64 - 1]),
        (np.array(["grün", ""], object), ["grün", ""]),
        (np.zeros((0, 3), np.float32), []),
    ],
)
async def test_values_of_all_datatypes(array: Any, data: list[Any]) -> None:
    answer = await answer_from_response(response(y=array).SerializeToString(), OutputForms())
    assert json.loads(answer.body)["outputs"][0]["data"] == data


async def test_what_json_has_not_is_refused_and_sent_in_binary() -> None:
    message = response(y=np.array([np.nan], np.float32)).SerializeToString()
    with pytest.raises(InvalidRequestError, match="NaN or infinity"):
        await answer_from_response(message, OutputForms())
    assert (await answer_from_response(message, OutputForms(True))).body.endswith(
        b"\x00\x00\xc0\x7f"
    )


async def test_outputs_that_are_too_many_for_json_are_refused() -> None:
    message = response(y=np.zeros(3 << 20, np.float32)).SerializeToString()
    with pytest.raises(InvalidRequestError, match="at most 8388608 are sent as JSON"):
        await answer_from_response(message, OutputForms())


async def test_outputs_in_shared_memory_have_no_values() -> None:
    message = response(y=np.array([1]))
    message.outputs[0].parameters["shared_memory_region"].string_param = "r"
    message.raw_output_contents[0] = b""
    for form in (OutputForms(), OutputForms(True)):
        (output,) = json.loads(
            (await answer_from_response(message.SerializeToString(), form)).body
        )["outputs"]
        assert output["parameters"] == {"shared_memory_region": "r"}
        assert "data" not in output


def test_messages_keep_numbers_names_and_defaults() -> None:
    config = pb.ModelConfig(name="m", input=[pb.ModelInput(name="x", data_type=pb.TYPE_INT64)])
    config.parameters["a"].string_value = "b"
    config.dynamic_batching.priority_levels = 2**63
    document = plain(config)
    assert document["parameters"] == {"a": {"string_value": "b"}}
    assert document["input"][0]["data_type"] == "TYPE_INT64"
    assert document["dynamic_batching"]["priority_levels"] == 2**63
    assert document["max_batch_size"] == 0
    assert "ensemble_scheduling" not in document


async def test_other_requests_have_turns_while_an_output_becomes_json() -> None:
    numbers = np.arange(50_000, dtype=np.float32)
    answering = asyncio.ensure_future(
        answer_from_response(response(y=numbers).SerializeToString(), OutputForms())
    )
    num_turns = 0
    while not answering.done():
        await asyncio.sleep(0)
        num_turns += 1
    assert num_turns > 10
    assert json.loads((await answering).body)["outputs"][0]["data"] == numbers.tolist()
