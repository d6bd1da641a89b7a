"""Requests from arrays and arrays from answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from services.cli.requests import infer
from services.cli.requests.json_values import typed_arrays
from services.contracts.errors import InvalidRequestError
from services.pb import open_inference_v2_pb2 as pb


def test_arrays_travel_raw_and_come_back_equal() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.int64).reshape(2, 3),
        "b": np.float32([[1.5]]),
        "c": np.array([["", "Grüße"]], dtype=object),
    }
    request = infer.request_from_arrays("m", "3", arrays)
    assert (request.model_name, request.model_version) == ("m", "3")
    response = pb.ModelInferResponse()
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(raw)
    back = infer.arrays_from_response(response)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype


def test_values_of_an_output_are_shown_in_lines_that_fit_beside_its_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tags = np.linspace(-1, 1, 27, dtype=np.float32).reshape(1, 3, 9)
    table = infer.outputs_table({"a_long_name_of_tags": tags})
    lines = table.lines(80)
    assert max(map(len, lines)) <= 80
    # A line for each of numpy's, none of which is folded once more.
    (*_, values) = table.rows[0]
    assert len(lines) == 3 + len(values.splitlines())


def test_a_dtype_without_a_datatype_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="complex64"):
        infer.request_from_arrays("m", "", {"x": np.zeros(1, np.complex64)})


def test_an_input_file_is_read_or_the_fault_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones(2, np.float32))
    arrays = infer.read_inputs([f"x=@{path}"])
    assert {name: array.tolist() for name, array in arrays.items()} == {"x": [1, 1]}
    with pytest.raises(InvalidRequestError, match=r"expected NAME=@FILE\.npy"):
        infer.read_inputs(["x"])
    with pytest.raises(InvalidRequestError, match="No such file"):
        infer.read_inputs([f"x=@{tmp_path / 'none.npy'}"])
    (tmp_path / "bad.npy").write_bytes(b"not an array")
    np.savez(tmp_path / "many.npy.npz", a=np.ones(1))
    for file in ("bad.npy", "many.npy.npz"):
        with pytest.raises(InvalidRequestError, match=f"{file} is no .npy file"):
            infer.read_inputs([f"x=@{tmp_path / file}"])
    with pytest.raises(InvalidRequestError, match="--input x: expected once"):
        infer.read_inputs([f"x=@{path}", f"x=@{path}"])


@pytest.mark.parametrize("array", [np.array([["a", "Ж"]]), np.array([[b"a", "Ж".encode()]])])
def test_text_of_a_file_becomes_strings(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    ((name, strings),) = infer.read_inputs([f"x=@{tmp_path / 'x.npy'}"]).items()
    assert (name, strings.dtype, strings.tolist()) == ("x", object, [["a", "Ж"]])


def test_strings_may_be_given_as_json(tmp_path: Path) -> None:
    text = '[["a=@b", ""], ["Ж\\u0000", "[x]"]]'
    (tmp_path / "x.json").write_text(text)
    for given in (f"x=@{tmp_path / 'x.json'}", f"x={text}"):
        ((name, strings),) = infer.read_inputs([given]).items()
        assert name == "x"
        assert strings.tolist() == [["a=@b", ""], ["Ж\0", "[x]"]]
        assert infer.request_from_arrays("m", "", {name: strings}).inputs[0].datatype == "BYTES"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('[1, "a"]', "list of strings or of numbers, or of lists of equal length"),
        ("[true, 1]", "list of strings or of numbers"),
        (f"[{2**63}]", "larger integers come from .npy files"),
        ('["a", ["b"]]', "expected a JSON list of strings"),
        ('["a"', "expected a JSON list of strings or numbers: Expecting"),
        ("[" * 100_000, "expected a JSON list of strings"),
        ("@text.json", "text.json is no JSON file: No such file|No such file"),
        ("@object.json", "expected a JSON list of strings or"),
        ("@latin.npy", "element 0: expected UTF-8"),
        ("a", "expected NAME=@FILE.npy, or JSON as"),
    ],
)
def test_what_is_no_list_of_strings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "object.json").write_text('{"a": 1}')
    np.save(tmp_path / "latin.npy", np.array([b"\xe9"]))
    with pytest.raises(InvalidRequestError, match=words):
        infer.read_inputs([f"x={value}"])


@pytest.mark.parametrize(
    ("value", "datatype", "dtype"),
    [
        ("[[1, 2]]", "INT64", "int64"),
        ("[[1, 2]]", "FP16", "float16"),
        ("[[1.5, 2]]", "FP32", "float32"),
        ("[[true, false]]", "BOOL", "bool"),
        ("[[-1.0, 2]]", "INT8", "int8"),
    ],
)
def test_numbers_get_the_datatype_of_the_model(value: str, datatype: str, dtype: str) -> None:
    arrays = infer.read_inputs([f"x={value}"])
    (typed,) = typed_arrays(arrays, ["x"], {"x": datatype}).values()
    assert (str(typed.dtype), typed.tolist()) == (dtype, json.loads(value))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [("[1.5]", "INT64"), ("[300]", "INT8"), ("[-1]", "UINT8"), ("[1e9]", "FP16")],
)
def test_numbers_that_the_datatype_lacks_are_refused(value: str, datatype: str) -> None:
    with pytest.raises(InvalidRequestError, match="--input x: the model takes .* do not fit"):
        typed_arrays(infer.read_inputs([f"x={value}"]), ["x"], {"x": datatype})


def test_json_keeps_every_integer() -> None:
    large = 2**53 + 1
    response = pb.ModelInferResponse(model_name="m", model_version="1")
    outputs = {
        "ids": np.array([large, -large]),
        "bits": np.array([2**64 - 1], np.uint64),
        "half": np.array([0.5], np.float16),
        "words": np.array(["東京", "[bold]"], object),
    }
    data = [o["data"] for o in infer.answer_document(response, outputs)["outputs"]]
    assert data == [[large, -large], [2**64 - 1], [0.5], ["東京", "[bold]"]]
