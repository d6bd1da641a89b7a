"""Text in, vectors out, by unmodified clients: equal to sentence-transformers."""

import asyncio
import io
import json
from contextlib import redirect_stdout
from typing import Any

import grpc
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from services.cli.output.show import output_form
from services.cli.requests.infer import gateway_rpc, run_infer
from services.cli.settings import CliSettings
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import InvalidRequestError
from services.contracts.model.pooling_choice import Pooling
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.conftest import Fleet
from tests.minilm_folder import INPUTS

from .conftest import MAX_TOKENS, Built

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Of 1 to more than MAX_TOKENS tokens.
TEXTS = (
    "Yes.",
    "",
    "A cat sits on a mat.",
    "Grüße aus 東京 🚀",
    "a\0b\tc\r\n",
    "The committee of the old harbour town met again. " * 3,
    "The committee of the old harbour town met again. " * 40,
    "word " * 60,
)
# 1 - cosine, and of an element of a vector of length 1, in fp32.
COSINE_DISTANCE = 1e-6
LARGEST_ERROR = 5e-6


def input_of(texts: Any, shape: tuple[int, ...] | None = None) -> list[InferInput]:
    array = np.array([text.encode() for text in texts], dtype=np.object_)
    array = array.reshape(shape or (len(texts), 1))
    tensor = InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return [tensor]


async def embedded(fleet: Fleet, *texts: str) -> Any:
    result = await (await fleet.client()).infer("minilm", input_of(texts))
    return result.as_numpy("embedding")


def assert_equal(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape
    assert (1 - (found * wanted).sum(axis=1)).max() < COSINE_DISTANCE
    np.testing.assert_allclose(found, wanted, atol=LARGEST_ERROR)


async def test_the_folder_is_read_and_the_pooled_model_is_proven(built: Built) -> None:
    text = built.version.recipe.text
    assert text is not None
    assert (text.tokenizer, text.pooling, text.normalize) == ("tokenizer.json", Pooling.MEAN, True)
    assert text.max_tokens == 256
    assert [spec.name for spec in built.version.master.outputs] == ["embedding"]
    assert [record.outcome for record in built.report.records] == [BuildOutcome.PROVEN]


async def test_mixed_lengths_in_one_request_equal_sentence_transformers(
    fleet: Fleet, original: SentenceTransformer
) -> None:
    assert_equal(await embedded(fleet, *TEXTS), original.encode(list(TEXTS)))


async def test_lone_texts_at_once_share_batches_and_equal_it_too(
    fleet: Fleet, original: SentenceTransformer
) -> None:
    found = await asyncio.gather(*(embedded(fleet, text) for text in TEXTS * 4))
    assert_equal(np.concatenate(found), original.encode(list(TEXTS * 4)))
    statistics = await (await fleet.client()).get_inference_statistics("minilm", as_json=True)
    (of_model,) = statistics["model_stats"]
    assert int(of_model["execution_count"]) < int(of_model["inference_count"])


async def test_an_answer_has_the_number_of_tokens(
    fleet: Fleet, original: SentenceTransformer
) -> None:
    client = await fleet.client()
    for texts in (TEXTS, TEXTS[:1]):
        answer = (await client.infer("minilm", input_of(texts))).get_response()
        wanted = original.tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)
        num_tokens = answer.parameters["num_tokens"].int64_param
        assert num_tokens == sum(map(len, wanted["input_ids"]))


async def test_text_may_be_flat_and_typed(fleet: Fleet) -> None:
    (wanted,) = await embedded(fleet, "A cat.")
    result = await (await fleet.client()).infer("minilm", input_of(["A cat."], (1,)))
    np.testing.assert_allclose(result.as_numpy("embedding"), [wanted], atol=LARGEST_ERROR)
    request = pb.ModelInferRequest(model_name="minilm")
    request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        b"A cat."
    )
    with grpc.insecure_channel(fleet.url) as channel:
        reply = await asyncio.to_thread(gateway_rpc(channel, "ModelInfer"), request)
    raw = np.frombuffer(reply.raw_output_contents[0], np.float32)
    np.testing.assert_allclose(raw, wanted, atol=LARGEST_ERROR)


async def test_tensors_are_taken_as_before(fleet: Fleet, original: SentenceTransformer) -> None:
    tokens = original.tokenizer(list(TEXTS[:3]), padding=True, return_tensors="np")
    tensors = [InferInput(name, list(tokens[name].shape), "INT64") for name in INPUTS]
    for tensor in tensors:
        tensor.set_data_from_numpy(tokens[tensor.name()].astype(np.int64))
    result = await (await fleet.client()).infer("minilm", tensors)
    assert_equal(result.as_numpy("embedding"), original.encode(list(TEXTS[:3])))
    with pytest.raises(InferenceServerException, match="'text' for model 'minilm'.*'text' alone"):
        await (await fleet.client()).infer("minilm", [*tensors, *input_of(TEXTS[:3])])


async def test_metadata_and_configuration_have_it(fleet: Fleet) -> None:
    metadata = await (await fleet.client()).get_model_metadata("minilm", as_json=True)
    assert metadata["inputs"][-1] == {"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}
    config = (await (await fleet.client()).get_model_config("minilm", as_json=True))["config"]
    assert config["input"][-1] == {
        "name": "text",
        "data_type": "TYPE_STRING",
        "dims": ["1"],
        "optional": True,
    }


async def test_long_text_is_bounded_work(fleet: Fleet, original: SentenceTransformer) -> None:
    words = "The committee of the old harbour town met again. "
    million = words * 20_000
    began_s = asyncio.get_running_loop().time()
    found = await embedded(fleet, million, "a" * 1_000_000, " " * 1_000_000)
    # Tokenising all of it takes seconds, on any machine.
    assert asyncio.get_running_loop().time() - began_s < 2
    wanted = original.encode([words * 40, "a" * 1000, ""])
    assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (b"\xff\xfe", "expected UTF-8"),
        ("\ud800".encode("utf-8", "surrogatepass"), "expected UTF-8"),
    ],
)
async def test_what_is_no_text_is_refused(fleet: Fleet, element: bytes, words: str) -> None:
    tensor = InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[element]], dtype=np.object_))
    with pytest.raises(InferenceServerException, match=words) as caught:
        await (await fleet.client()).infer("minilm", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((9, 1), "batch-size must be <= 8"),
        ((4, 2), r"unexpected shape for input 'text'.*Expected \[-1, 1\], got \[4, 2\]"),
        ((0, 1), "expected at least 1, got 0"),
    ],
)
async def test_what_is_no_batch_of_texts_is_refused(
    fleet: Fleet, shape: tuple[int, ...], words: str
) -> None:
    num = shape[0] * shape[1]
    with pytest.raises(InferenceServerException, match=words) as caught:
        await (await fleet.client()).infer("minilm", input_of(["a"] * num, shape))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


async def test_the_command_sends_texts(fleet: Fleet, original: SentenceTransformer) -> None:
    out = io.StringIO()
    with redirect_stdout(out), output_form(as_json=True):
        await asyncio.to_thread(
            run_infer,
            CliSettings(),
            "minilm",
            [],
            "",
            fleet.url,
            texts=TEXTS[:2],
        )
    (output,) = json.loads(out.getvalue())["outputs"]
    found = np.array(output["data"], np.float32).reshape(output["shape"])
    assert_equal(found, original.encode(list(TEXTS[:2])))
    with pytest.raises(InvalidRequestError, match="--text a text', in place|--text 'a text'"):
        await asyncio.to_thread(run_infer, CliSettings(), "minilm", [], "", fleet.url)
