"""BYTES tensors, from the file of a model to the answers that unmodified clients get."""

import asyncio
import io
import json
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from services.cli.output.show import output_form
from services.cli.requests.infer import gateway_rpc, run_infer
from services.cli.settings import CliSettings
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import EngineError
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.byte_strings import MAX_STRINGS
from services.contracts.model.manifest import ProofOutcome
from services.engines.device.device_probe import probe_device
from services.pb import open_inference_v2_pb2 as pb
from services.replica.engine.fallback import CompiledFallback
from tests.conformance.strings import WORDS
from tests.integration.gateway.conftest import Fleet

from .conftest import Built

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = [["red", "東京"], ["", ""], ["none of them", "green"]]
CODES = [[0, 3], [2, 2], [-1, 1]]
NAMES = [[name.encode() for name in row] for row in (["red", "東京"], ["", ""], ["?", "green"])]
REGION_BYTES = 1024


def words_of(array: Any) -> list[InferInput]:
    tensor = InferInput("words", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return [tensor]


def assert_answers(result: InferResult) -> None:
    assert result.as_numpy("code").tolist() == CODES
    assert result.as_numpy("name").tolist() == NAMES
    assert result.as_numpy("is_same").tolist() == [[False], [True], [False]]


async def test_the_model_is_built_and_proven_on_the_kind_that_has_strings(built: Built) -> None:
    # Those of the samples, as the recipe has none.
    assert built.version.recipe.inputs["words"].values == (*WORDS, "other", "x")
    assert [(r.key.kind, r.outcome) for r in built.report.records] == [
        (EngineKind.ONNXRUNTIME, BuildOutcome.PROVEN)
    ]
    assert {each.kind: each.reason for each in built.report.plans[0].skipped} == {
        kind: f"input 'words' is strings (BYTES): kind {kind} computes with numbers alone"
        for kind in (EngineKind.OPENVINO, EngineKind.INDUCTOR)
    }
    (engine,) = built.registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED
    assert engine.proof.reference.startswith("onnx.reference")
    assert {check.output for check in engine.proof.checks} == {"code", "name", "is_same"}
    assert engine.proof.timings


async def test_without_its_engine_it_waits_for_it_as_torch_has_no_strings(built: Built) -> None:
    load = CompiledFallback(built.store_url, built.folder / "cache", probe_device())
    with pytest.raises(
        EngineError, match="'colours': input 'words' is strings .* kind onnxruntime"
    ):
        load(built.version)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[word.encode() for word in row] for row in ROWS], dtype=object),
        np.array(ROWS, dtype=object),
        np.array([[np.bytes_(word.encode()) for word in row] for row in ROWS]),
    ],
    ids=["bytes", "str", "np.bytes_"],
)
async def test_every_array_of_text_that_tritonclient_takes_is_answered(
    fleet: Fleet, array: Any
) -> None:
    client = await fleet.client()
    result = await client.infer("colours", words_of(array), request_id="7")
    assert_answers(result)
    answer = result.get_response()
    assert (answer.id, len(answer.raw_output_contents)) == ("7", 3)
    assert [output.datatype for output in answer.outputs] == ["INT64", "BYTES", "BOOL"]


async def test_typed_contents_are_answered_raw(fleet: Fleet) -> None:
    request = pb.ModelInferRequest(model_name="colours")
    tensor = request.inputs.add(name="words", datatype="BYTES", shape=[3, 2])
    tensor.contents.bytes_contents.extend(word.encode() for row in ROWS for word in row)
    request.outputs.add(name="name")
    answer = await asked(fleet, request)
    assert [each.name for each in answer.outputs] == ["name"]
    wanted = serialize_byte_tensor(np.array(NAMES, dtype=object))
    assert list(answer.raw_output_contents) == [wanted.item()]


async def asked(fleet: Fleet, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    def ask() -> pb.ModelInferResponse:
        with grpc.insecure_channel(fleet.url) as channel:
            return gateway_rpc(channel, "ModelInfer")(request, timeout=60)

    return await asyncio.to_thread(ask)


async def test_what_the_model_takes_and_gives_is_said_in_the_protocols_words(fleet: Fleet) -> None:
    client = await fleet.client()
    metadata = await client.get_model_metadata("colours")
    assert [(i.name, i.datatype, list(i.shape)) for i in metadata.inputs] == [
        ("words", "BYTES", [-1, 2])
    ]
    assert {o.name: o.datatype for o in metadata.outputs}["name"] == "BYTES"
    config = (await client.get_model_config("colours")).config
    assert config.input[0].data_type == pb.TYPE_STRING
    assert config.max_batch_size == 8


async def test_many_at_once_are_joined_and_get_their_own_rows(fleet: Fleet) -> None:
    client = await fleet.client()

    async def ask(number: int) -> None:
        row = [WORDS[number % len(WORDS)], f"word {number}"]
        result = await client.infer("colours", words_of(np.array([row] * 2, dtype=object)))
        assert result.as_numpy("name").tolist() == [[row[0].encode(), b"?"]] * 2

    await asyncio.gather(*map(ask, range(64)))


def raw(data: bytes, *shape: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="colours", raw_input_contents=[data])
    request.inputs.add(name="words", datatype="BYTES", shape=shape)
    return request


def typed(*elements: bytes) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="colours")
    tensor = request.inputs.add(name="words", datatype="BYTES", shape=[1, 2])
    tensor.contents.bytes_contents.extend(elements)
    return request


def classes_of(output: str) -> pb.ModelInferRequest:
    request = typed(b"red", b"red")
    request.outputs.add(name=output).parameters["classification"].int64_param = 1
    return request


_WRONG = {
    "a length beyond the end": (raw(b"\xff\xff\xff\xffa" + b"\0" * 4, 1, 2), "as its length says"),
    "a cut length": (raw(b"\0\0\0\0\0\0\0", 1, 2), "expected 2 strings for BYTES"),
    "one string too few": (raw(b"\x04\0\0\0abcd", 1, 2), "expected 2 strings .*, got 1"),
    "one string more": (raw(b"\0\0\0\0" * 3, 1, 2), "got 4 bytes more"),
    "no UTF-8": (raw(b"\x01\0\0\0a\x01\0\0\0\xe9", 1, 2), "element 1: expected UTF-8"),
    "no UTF-8, typed": (typed(b"a", b"\xe9"), "element 1: expected UTF-8, .*0xe9"),
    "too few elements": (typed(b"a"), r"expected 2 elements for shape \[1, 2\], got 1"),
    "too many strings": (raw(b"", MAX_STRINGS, 2), "has 2000000 strings, at most 1000000"),
    "another shape": (raw(b"\0\0\0\0" * 3, 1, 3), r"Expected \[-1, 2\], got \[1, 3\]"),
    "classes of strings": (classes_of("name"), "expected an output of numbers, got BYTES"),
}


@pytest.mark.parametrize("fault", _WRONG)
async def test_what_is_no_tensor_of_strings_is_refused_in_words(fleet: Fleet, fault: str) -> None:
    request, words = _WRONG[fault]
    with pytest.raises(grpc.RpcError, match=words) as refused:
        await asked(fleet, request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "words" in refused.value.details() or fault == "classes of strings"


async def test_classes_of_an_output_of_numbers_are_given(fleet: Fleet) -> None:
    answer = await asked(fleet, classes_of("code"))
    assert answer.raw_output_contents[0] == b"\x03\0\0\x000:0"


async def test_strings_stay_in_shared_memory(fleet: Fleet) -> None:
    client = await fleet.client()
    data = serialize_byte_tensor(np.array(ROWS, dtype=object)).item()
    key = f"/smelt-{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region("words", key, REGION_BYTES)
    try:
        shm.set_shared_memory_region(region, [np.frombuffer(data, np.uint8)])
        await client.register_system_shared_memory("words", key, REGION_BYTES)
        tensor = InferInput("words", [3, 2], "BYTES")
        tensor.set_shared_memory("words", len(data))
        output = InferRequestedOutput("name")
        output.set_shared_memory("words", REGION_BYTES // 2, REGION_BYTES // 2)
        result = await client.infer("colours", [tensor], outputs=[output])
        assert list(result.get_output("name").shape) == [3, 2]
        found = shm.get_contents_as_numpy(region, np.object_, [3, 2], REGION_BYTES // 2)
        assert found.tolist() == NAMES
        await client.unregister_system_shared_memory("words")
    finally:
        shm.destroy_shared_memory_region(region)


async def test_the_command_sends_and_shows_strings(fleet: Fleet, tmp_path: Path) -> None:
    np.save(tmp_path / "words.npy", np.array(ROWS))
    settings = CliSettings(home=tmp_path)

    def told(value: str) -> dict[str, Any]:
        with redirect_stdout(io.StringIO()) as out, output_form(as_json=True):
            run_infer(settings, "colours", [f"words={value}"], "", fleet.url)
        document = json.loads(out.getvalue())
        return {each["name"]: each["data"] for each in document["outputs"]}

    for value in (f"@{tmp_path / 'words.npy'}", json.dumps(ROWS)):
        outputs = await asyncio.to_thread(told, value)
        assert outputs["code"] == [code for row in CODES for code in row]
        assert outputs["name"] == ["red", "東京", "", "", "?", "green"]


async def test_a_wrong_datatype_is_told_both(fleet: Fleet) -> None:
    client = await fleet.client()
    tensor = InferInput("words", [1, 2], "INT64")
    tensor.set_data_from_numpy(np.zeros((1, 2), np.int64))
    with pytest.raises(InferenceServerException, match="expected datatype BYTES, got INT64"):
        await client.infer("colours", [tensor])
