"""OpenAI's own client, and one that is built on it, at the gateway's HTTP port."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from services.contracts.errors import OverloadedError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.transport.frames import InferFrame
from tests.integration.gateway.http.conftest import run_curl, with_http
from tests.integration.gateway.http.embedder import add_embedder, embed
from tests.integration.gateway.http.test_same_rules import refuse

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

TEXT = TensorSpec(name="text", datatype="BYTES", shape=("batch", 1))
IDS = TensorSpec(name="input_ids", datatype="INT64", shape=("batch", "length"))
MASK = TensorSpec(name="attention_mask", datatype="INT64", shape=("batch", "length"))


@pytest.fixture
async def embedders(fleet_of: "Fleet") -> "Fleet":
    """A model that takes texts, one that takes ids, and one that takes neither."""
    await add_embedder(fleet_of, "texts", TEXT)
    await add_embedder(fleet_of, "ids", IDS, MASK)
    await add_embedder(fleet_of, "images", IDS.model_copy(update={"name": "pixels"}))
    return await with_http(fleet_of, "texts", "ids", "images")


@pytest.fixture
async def client(embedders: "Fleet") -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{embedders.gateway.http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_texts_become_vectors_in_their_order(
    client: openai.AsyncOpenAI, encoding: str | None
) -> None:
    texts = ["x" * n for n in range(1, 20)]
    more = {} if encoding is None else {"encoding_format": encoding}
    answer = await client.embeddings.create(model="texts", input=texts, **more)
    assert answer.model == "texts"
    assert [each.index for each in answer.data] == list(range(19))
    if encoding != "base64":
        # Nineteen texts in batches of eight.
        batches = [8.0] * 16 + [3.0] * 3
        expected = [[len(text), rows, 0.5] for text, rows in zip(texts, batches, strict=True)]
        assert [each.embedding for each in answer.data] == expected


async def test_more_batches_than_the_model_may_have_at_once_wait_for_each_other(
    fleet_of: "Fleet",
) -> None:
    await add_embedder(fleet_of, "texts", TEXT)
    fleet = await with_http(fleet_of, "texts", model_max_in_flight={"texts": 2})
    body = b'{"model":"texts","input":[' + b'"a",' * 39 + b'"a"]}'
    got = await run_curl(fleet, "--data-binary", "@-", "/v1/embeddings", given=body)
    assert got.status == 200, got.body


async def test_a_batch_without_room_waits_while_others_of_its_request_have_it(
    fleet_of: "Fleet",
) -> None:
    await add_embedder(fleet_of, "texts", TEXT)
    num_under_way = num_refused = 0

    async def one_at_a_time(frame: InferFrame) -> bytes:
        nonlocal num_under_way, num_refused
        if num_under_way:
            num_refused += 1
            raise OverloadedError("full", retry_after_s=0.01)
        num_under_way += 1
        if not num_refused:
            await refused.wait()
        num_under_way -= 1
        return await embed(frame)

    refused = asyncio.Event()
    fleet_of.replicas["texts"].answer = one_at_a_time
    fleet = await with_http(fleet_of, "texts")
    body = b'{"model":"texts","input":[' + b'"a",' * 39 + b'"a"]}'
    asked = asyncio.create_task(
        run_curl(fleet, "--data-binary", "@-", "/v1/embeddings", given=body)
    )
    await fleet.until_metric(1, "smelt_requests_held", model="texts", version="1")
    refused.set()
    got = await asked
    assert got.status == 200, got.body
    # Four batches were refused at first, and none of them counts as a refused request.
    assert num_refused >= 4
    await fleet.until_metric(5, "smelt_requests_total", model="texts", version="1", code="OK")


async def test_a_request_without_room_for_any_batch_is_refused_at_once(fleet_of: "Fleet") -> None:
    await add_embedder(fleet_of, "texts", TEXT)
    fleet_of.replicas["texts"].answer = refuse
    fleet = await with_http(fleet_of, "texts")
    body = b'{"model":"texts","input":[' + b'"a",' * 39 + b'"a"]}'
    got = await run_curl(fleet, "--data-binary", "@-", "/v1/embeddings", given=body)
    assert (got.status, got.headers["retry-after-ms"]) == (429, "1500")


async def test_a_batch_waits_no_longer_than_the_gateway_holds(fleet_of: "Fleet") -> None:
    await add_embedder(fleet_of, "texts", TEXT)
    fleet_of.replicas["texts"].answer = embed_the_first_alone
    fleet = await with_http(fleet_of, "texts", hold_s=0.2)
    body = b'{"model":"texts","input":[' + b'"first",' * 8 + b'"a"]}'
    got = await run_curl(fleet, "--data-binary", "@-", "/v1/embeddings", given=body)
    assert (got.status, got.headers["retry-after-ms"]) == (429, "50")


async def embed_the_first_alone(frame: InferFrame) -> bytes:
    """A replica that takes texts of more than a letter alone."""
    if b"first" not in bytes(frame.request):
        raise OverloadedError("full")
    return await embed(frame)


async def test_one_text_and_lists_of_ids(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="texts", input="four")
    assert answer.data[0].embedding == [4.0, 1.0, 0.5]
    answer = await client.embeddings.create(model="ids", input=[[1, 2, 3], [10]])
    assert [each.embedding[0] for each in answer.data] == [6.0, 10.0]
    assert answer.usage.prompt_tokens == 4


async def test_an_embedding_class_of_langchain(embedders: "Fleet") -> None:
    url = f"http://127.0.0.1:{embedders.gateway.http_port}/v1"
    # One that it makes itself is kept for the life of the process, and this event loop ends.
    async with openai.DefaultAsyncHttpxClient() as http:
        # Its own cutting of texts is by OpenAI's tokenizer, and sends ids of that one.
        embeddings = OpenAIEmbeddings(
            model="texts",
            base_url=url,
            api_key=SecretStr("none"),
            check_embedding_ctx_length=False,
            http_async_client=http,
        )
        vectors = await embeddings.aembed_documents(["x" * n for n in range(1, 4)])
        assert vectors == [[float(n), 3.0, 0.5] for n in range(1, 4)]
        assert await embeddings.aembed_query("four") == [4.0, 1.0, 0.5]


async def test_the_base_url_names_the_model_of_a_reranker(embedders: "Fleet") -> None:
    async def ask(path: str, body: str) -> tuple[int, bytes]:
        got = await run_curl(embedders, "-d", body, path)
        return got.status, got.body

    asked = '{"query": "q", "texts": ["a"]}'
    assert await ask("/v2/models/texts/rerank", asked) == (
        400,
        b'{"error":"model \'texts\' gives 3 numbers for a pair, expected the one of a reranker"}',
    )
    assert (await ask("/v2/models/none/rerank", asked))[0] == 404
    assert (await ask("/v2/models/texts/rerank", '{"query": "q"}'))[0] == 400
    assert (await ask("/v2/models/texts/versions/1/rerank", asked))[0] == 404
    assert (await run_curl(embedders, "/v2/models/texts/rerank")).status == 405


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
async def test_both_apis_of_cohere_are_there(embedders: "Fleet", path: str) -> None:
    asked = '{"model": "texts", "query": "q", "documents": ["a"]}'
    refused = await run_curl(embedders, "-d", asked, path)
    assert (refused.status, b"gives 3 numbers for a pair" in refused.body) == (400, True)


async def test_a_wrong_method_is_refused_as_openai_has_errors(embedders: "Fleet") -> None:
    refused = await run_curl(embedders, "/v1/embeddings")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert json.loads(refused.body)["error"]["message"] == "this path accepts only POST"


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert {model.id async for model in client.models.list()} == {"texts", "ids", "images"}
    assert (await client.models.retrieve("ids")).id == "ids"
    with pytest.raises(openai.NotFoundError, match="none"):
        await client.models.retrieve("none")


async def test_what_a_model_cannot_embed_is_refused(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="accepts no text"):
        await client.embeddings.create(model="ids", input="text")
    with pytest.raises(openai.BadRequestError, match="does not accept token ids"):
        await client.embeddings.create(model="images", input=[[1]])
    with pytest.raises(openai.BadRequestError, match="this model has 3, got 4"):
        await client.embeddings.create(model="texts", input="a", dimensions=4)
    with pytest.raises(openai.NotFoundError, match="unknown model: 'none'"):
        await client.embeddings.create(model="none", input="a")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model":"texts","input":[]}', b"expected a text"),
        (b'{"model":"texts","input":["a",1]}', b"expected a text"),
        (b'{"model":"texts","input":[[]]}', b"expected a text"),
        (b'{"model":"texts"}', b"expected a text"),
        (b'{"model":1,"input":"a"}', b"model: expected a string"),
        (b'{"model":"\\ud800","input":"a"}', b"no form in UTF-8"),
        (b'{"model":"texts","input":"a","encoding_format":"x"}', b"expected float or base64"),
        (b'{"model":"texts","input":"\\ud800"}', b"UTF-8"),
        (b'{"model":"ids","input":[99999999999999999999]}', b"too large"),
        (b'{"model":"texts","input":[' + b'"a",' * 2048 + b'"a"]}', b"at most 2048"),
        (b'{"model":"ids","input":[[1],[' + b"1," * 600_000 + b"1]]}", b"ids at most"),
        # Of two batches, each of which would be small enough.
        (
            b'{"model":"ids","input":['
            + (b"[" + b"1," * 100_000 + b"1]" + b",[1]" * 7 + b",") * 2
            + b"[1]]}",
            b"ids at most",
        ),
    ],
)
async def test_malformed_requests_are_refused(embedders: "Fleet", body: bytes, why: bytes) -> None:
    got = await run_curl(embedders, "--data-binary", "@-", "/v1/embeddings", given=body)
    assert got.status == 400
    assert why in got.body
    await embedders.until_metric(
        1, "smelt_requests_total", model="", version="", code="INVALID_ARGUMENT"
    )


async def test_a_model_that_is_not_there_is_counted_as_it_is_for_other_requests(
    embedders: "Fleet",
) -> None:
    got = await run_curl(embedders, "-d", '{"model":"none","input":"a"}', "/v1/embeddings")
    assert got.status == 404
    await embedders.until_metric(1, "smelt_requests_total", model="", version="", code="NOT_FOUND")
