"""KServe's JSON and binary tensors, to the message that gRPC's clients send."""

import json
import math
from typing import Any

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensors import array_from_bytes
from services.gateway.http.requests import request_from_body
from services.pb import open_inference_v2_pb2 as pb

X: dict[str, Any] = {"name": "x", "datatype": "INT64", "shape": [2, 2]}
BINARY = {"parameters": {"binary_data_size": 32}}
RAW = np.arange(4).tobytes()


def message_of(document: dict[str, Any], *tensors: bytes) -> pb.ModelInferRequest:
    """What becomes of a document with binary tensors behind it, in two pieces."""
    head = json.dumps(document).encode()
    body = b"".join((head, *tensors))
    cut = len(head) // 2
    message, _ = request_from_body([body[:cut], body[cut:]], len(head), ("m", "3"), None)
    return pb.ModelInferRequest.FromString(bytes(message))


def test_json_and_binary_become_the_same_message() -> None:
    binary = message_of({"id": "7", "inputs": [X | BINARY]}, RAW)
    for data in ([0, 1, 2, 3], [[0, 1], [2, 3]]):
        assert message_of({"id": "7", "inputs": [X | {"data": data}]}) == binary
    assert (binary.model_name, binary.model_version, binary.id) == ("m", "3", "7")
    assert list(binary.raw_input_contents) == [RAW]
    assert not binary.inputs[0].parameters


def test_tensors_in_json_and_binary_are_mixed_in_their_order() -> None:
    names = [X | {"name": "a"} | BINARY, X | {"name": "b", "data": [9] * 4}, X | BINARY]
    message = message_of({"inputs": names}, RAW, RAW[::-1])
    assert [tensor.name for tensor in message.inputs] == ["a", "b", "x"]
    assert list(message.raw_input_contents) == [RAW, np.full(4, 9).tobytes(), RAW[::-1]]


def test_parameters_keep_their_types_and_those_of_http_are_left_out() -> None:
    given = {"a": True, "b": 2, "c": "3", "d": 4.5, "binary_data_output": True}
    asked = [{"name": "y", "parameters": {"binary_data": False, "classification": 3}}]
    message = message_of({"inputs": [], "parameters": given, "outputs": asked})
    assert message.parameters["a"].bool_param is True
    assert message.parameters["b"].int64_param == 2
    assert message.parameters["c"].string_param == "3"
    assert message.parameters["d"].double_param == 4.5
    assert set(message.parameters) == set("abcd")
    assert set(message.outputs[0].parameters) == {"classification"}


def test_inputs_in_shared_memory_have_no_contents() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 32}
    message = message_of({"inputs": [X | {"parameters": region}, X | BINARY]}, RAW)
    assert message.inputs[0].parameters["shared_memory_byte_size"].int64_param == 32
    assert list(message.raw_input_contents) == [RAW]


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("BOOL", [True, False]),
        ("UINT8", [0, 255]),
        ("UINT64", [0, 2**64 - 1]),
        ("INT64", [-(2**63), 2**63 - 1]),
        ("FP16", [1.5, 2]),
        ("BF16", [1.5, 2]),
        ("FP64", [1e300, -0.0]),
        ("BYTES", ["grün", ""]),
    ],
)
def test_values_of_all_datatypes_are_exact(datatype: str, values: list[Any]) -> None:
    tensor = {"name": "x", "datatype": datatype, "shape": [2], "data": values}
    (raw,) = message_of({"inputs": [tensor]}).raw_input_contents
    assert array_from_bytes(raw, datatype, [2]).tolist() == values


@pytest.mark.parametrize(("datatype", "most"), [("FP16", 65504), ("BF16", 3e38), ("FP32", 3e38)])
def test_numbers_beyond_a_datatype_do_not_become_infinity(datatype: str, most: float) -> None:
    tensor = {"name": "x", "datatype": datatype, "shape": [2]}
    (raw,) = message_of({"inputs": [tensor | {"data": [most, -math.inf]}]}).raw_input_contents
    assert array_from_bytes(raw, datatype, [2]).tolist()[1] == -math.inf
    with pytest.raises(InvalidRequestError, match=f"data for {datatype} has numbers beyond"):
        message_of({"inputs": [tensor | {"data": [2 * most, math.inf]}]})


def test_outputs_are_wanted_as_each_of_them_says() -> None:
    def wanted(is_default: bool) -> list[bool]:
        named = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
        named.append({"name": "c", "parameters": {"binary_data": False}})
        document = {"inputs": [], "outputs": named}
        document["parameters"] = {"binary_data_output": is_default}  # type: ignore[assignment]
        _, forms = request_from_body([json.dumps(document).encode()], None, ("m", ""), None)
        return [forms.is_binary(name) for name in "abcd"]

    assert wanted(False) == [True, False, False, False]
    assert wanted(True) == [True, True, False, True]


def test_a_large_message_lies_in_the_memory_that_is_given() -> None:
    memory = memoryview(bytearray(200_000))
    size = 100_000
    tensor = {"name": "x", "datatype": "UINT8", "shape": [size]}
    tensor["parameters"] = {"binary_data_size": size}  # type: ignore[assignment]
    head = json.dumps({"inputs": [tensor]}).encode()
    body = [head, b"\1" * 60_000, b"\2" * 40_000]
    message, _ = request_from_body(body, len(head), ("m", ""), lambda n: memory[:n])
    assert isinstance(message, memoryview)
    assert message.obj is memory.obj
    (raw,) = pb.ModelInferRequest.FromString(bytes(message)).raw_input_contents
    assert raw == b"\1" * 60_000 + b"\2" * 40_000


def test_a_name_without_a_form_in_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no form in UTF-8"):
        message_of({"inputs": [X | BINARY | {"name": "\udc00"}]}, RAW)


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_more_tensors_than_any_model_has_are_refused(field: str) -> None:
    document = {"inputs": [X | BINARY]} | {field: [{"name": "x"}] * 4097}
    with pytest.raises(InvalidRequestError, match=f"'{field}': expected at most 4096, got 4097"):
        message_of(document, RAW)
