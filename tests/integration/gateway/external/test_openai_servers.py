"""External OpenAI servers behind a gateway, asked by OpenAI's own client."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import openai
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from services.gateway.access.static_tokens import new_token, token_hash
from tests.integration.gateway.conftest import make_inputs
from tests.integration.gateway.external.conftest import add_external, external_model
from tests.integration.gateway.external.openai_server import OpenAiServer, openai_server
from tests.integration.gateway.http.conftest import run_curl, with_http

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

HI: Any = [{"role": "user", "content": "hi"}]
COUNTED = "smelt_requests_total"


async def said(client: openai.AsyncOpenAI, **more: Any) -> str:
    """What a stream says."""
    stream = await client.chat.completions.create(model="chat", messages=HI, stream=True, **more)
    return "".join([part.choices[0].delta.content or "" async for part in stream])


async def test_all_paths_are_passed_on_under_the_servers_name(
    chat: "Fleet", client: openai.AsyncOpenAI, server: OpenAiServer
) -> None:
    answer = await client.chat.completions.create(model="chat", messages=HI, temperature=0.5)
    assert answer.choices[0].message.content == "one two three"
    assert (await client.completions.create(model="chat", prompt="a")).choices[0].text
    vectors = await client.embeddings.create(model="chat", input="a", encoding_format="float")
    assert vectors.data[0].embedding == [0.5]
    assert await said(client) == "one two three"
    assert {each["model"] for each in server.asked} == {"Qwen2.5"}
    assert server.asked[0]["temperature"] == 0.5
    # The client's token is the gateway's, and none of the server's business.
    assert not any("authorization" in headers for headers in server.headers)
    assert [each.id async for each in client.models.list()] == ["chat"]
    await chat.until_metric(4, COUNTED, model="chat", version="1", code="OK")


async def test_parts_come_as_they_are_made_and_a_client_that_leaves_cancels(
    chat: "Fleet", client: openai.AsyncOpenAI, server: OpenAiServer
) -> None:
    server.step = asyncio.Queue()
    stream = await client.chat.completions.create(model="chat", messages=HI, stream=True)
    parts = aiter(stream)
    # The server waits for the step that follows.
    assert (await anext(parts)).choices[0].delta.content == "one "
    server.step.put_nowait(None)
    assert (await anext(parts)).choices[0].delta.content == "two "
    assert chat.gateway.endpoints.peers_of(*chat.endpoints().values())[0].num_outstanding == 1
    await stream.close()
    async with asyncio.timeout(20):
        await server.gone.wait()
    await chat.until_metric(1, COUNTED, model="chat", version="1", code="CANCELLED")


async def test_a_server_that_dies_in_a_stream_ends_it_with_words(
    chat: "Fleet", client: openai.AsyncOpenAI, server: OpenAiServer
) -> None:
    server.fault = "dies"
    with pytest.raises(openai.APIError, match=rf"'chat'.*{server.port}/v1 ended in its answer"):
        await said(client)
    await chat.until_metric(1, COUNTED, model="chat", version="1", code="UNAVAILABLE")


@pytest.mark.parametrize(
    ("fault", "status", "why"),
    [
        ("400", 400, "^{'error': {'message': 'no luck'}}|no luck"),
        ("404", 404, "no luck"),
        ("422", 422, "no luck"),
        ("429", 429, "no luck"),
        ("500", 502, "'chat': its server at openai.http://127.0.0.1:.*/v1 answers 500.*no luck"),
        ("503", 503, "answers 503"),
        ("401", 502, "answers 401.*it was sent no token"),
    ],
)
async def test_what_the_server_refuses(
    client: openai.AsyncOpenAI, server: OpenAiServer, fault: str, status: int, why: str
) -> None:
    server.fault = fault
    with pytest.raises(openai.APIStatusError, match=why) as refused:
        await said(client)
    assert refused.value.status_code == status


async def test_headers_that_are_not_utf8_are_passed_on(
    client: openai.AsyncOpenAI, server: OpenAiServer
) -> None:
    server.request_id = b"caf\xe9"
    answer = await client.chat.completions.with_raw_response.create(model="chat", messages=HI)
    assert answer.headers["x-request-id"] == "caf\xe9"


async def test_limits_of_time(fleet_of: "Fleet", server: OpenAiServer) -> None:
    add_external(fleet_of, external_model(server.url))
    await with_http(fleet_of, "external chat/1", external_first_byte_s=0.3, external_idle_s=0.3)
    ask = ("-d", '{"model":"chat","messages":[],"stream":true}', "/v1/chat/completions")
    server.step = asyncio.Queue()
    assert b"sent nothing for 0.3 s" in (await run_curl(fleet_of, *ask)).body
    server.fault = "stuck"
    got = await run_curl(fleet_of, *ask)
    assert got.status == 504
    assert b"did not begin to answer within 0.3 s" in got.body
    # The client's own limit, as for all requests.
    got = await run_curl(fleet_of, "-H", "grpc-timeout: 100m", *ask)
    assert (got.status, b"the deadline passed" in got.body) == (504, True)


async def test_a_server_that_is_gone_is_asked_again_once_it_is_back(
    chat: "Fleet", client: openai.AsyncOpenAI, server: OpenAiServer
) -> None:
    await server.stop()
    with pytest.raises(openai.InternalServerError, match=r"'chat'.*cannot be reached") as refused:
        await said(client)
    assert refused.value.status_code == 503
    await chat.until(lambda: not chat.routed())
    with pytest.raises(openai.InternalServerError, match="has no ready replica"):
        await said(client)
    await server.start()
    await chat.until(lambda: bool(chat.routed()))
    assert await said(client) == "one two three"


async def test_versions_share_requests_and_stand_in_for_each_other(
    fleet_of: "Fleet", server: OpenAiServer
) -> None:
    async with openai_server() as other:
        add_external(fleet_of, external_model(server.url), weight=1)
        add_external(fleet_of, external_model(other.url, version=2), weight=1)
        await with_http(fleet_of, "external chat/1", "external chat/2")
        url = f"http://127.0.0.1:{fleet_of.gateway.http_port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            for _ in range(20):
                await said(client)
            assert 0 < len(server.asked) < 20
            assert len(server.asked) + len(other.asked) == 20
            await other.stop()
            for _ in range(5):
                await said(client)
        await other.start()


async def test_access_admission_and_tokens(
    fleet_of: "Fleet", server: OpenAiServer, tmp_path: Path
) -> None:
    token, other = new_token(), new_token()
    rules = [
        {
            "name": "a",
            "sha256": token_hash(token),
            "grants": [{"models": ["chat"], "verbs": ["infer"]}],
        },
        {
            "name": "b",
            "sha256": token_hash(other),
            "grants": [{"models": ["x"], "verbs": ["infer"]}],
        },
    ]
    access = tmp_path / "access.yaml"
    access.write_text(yaml.safe_dump({"tokens": rules}))
    (tmp_path / "llm").write_text("of the server\n")
    server.token = "of the server"
    add_external(fleet_of, external_model(server.url, token="llm"))
    await with_http(
        fleet_of,
        "external chat/1",
        access_file=access,
        external_token_dir=tmp_path,
        model_max_in_flight={"chat": 1},
    )
    ask = ("-d", '{"model":"chat","messages":[],"stream":true}', "/v1/chat/completions")
    assert (await run_curl(fleet_of, *ask)).status == 401
    assert (await run_curl(fleet_of, "-H", f"authorization: Bearer {other}", *ask)).status == 403
    mine = ("-H", f"authorization: Bearer {token}", *ask)
    got = await run_curl(fleet_of, *mine)
    assert (got.status, got.headers["content-type"]) == (200, "text/event-stream")
    assert got.body.count(b"data: ") == 4
    server.step = asyncio.Queue()
    url = f"http://127.0.0.1:{fleet_of.gateway.http_port}/v1/chat/completions"
    asked = {"model": "chat", "messages": [], "stream": True}
    async with httpx.AsyncClient() as slow:
        headers = {"authorization": f"Bearer {token}"}
        async with slow.stream("POST", url, json=asked, headers=headers):
            got = await run_curl(fleet_of, *mine)
    assert got.status == 429
    assert b"bound is 1" in got.body
    assert "retry-after" in got.headers
    # The file of the server's token is read again.
    server.step, server.token = None, "another"
    assert b"it was sent token 'llm'" in (await run_curl(fleet_of, *mine)).body
    (tmp_path / "llm").unlink()
    (tmp_path / "llm").write_text("another")
    async with asyncio.timeout(20):
        while (await run_curl(fleet_of, *mine)).status != 200:
            pass


async def test_other_protocols_are_told_where_to_ask(chat: "Fleet") -> None:
    triton = await chat.client()
    with pytest.raises(InferenceServerException, match="ask POST /v1/chat/completions") as refused:
        await triton.infer("chat", make_inputs())
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    assert await triton.is_model_ready("chat")
    assert (await triton.get_model_metadata("chat")).platform == "openai"
    assert (await triton.get_model_config("chat")).config.name == "chat"
    assert (await triton.get_inference_statistics("chat")).model_stats[0].name == "chat"
    index = await triton.get_model_repository_index()
    assert [(each.name, each.state) for each in index.models] == [("chat", "READY")]


async def test_models_with_a_master_have_no_chat(echo_fleet: "Fleet") -> None:
    http_fleet = await with_http(echo_fleet)
    got = await run_curl(http_fleet, "-d", '{"model":"echo"}', "/v1/chat/completions")
    assert got.status == 404
    assert b"'echo' has no /v1/chat/completions" in got.body


async def test_what_the_controller_found_is_told(fleet_of: "Fleet", server: OpenAiServer) -> None:
    reason = "stuck: it accepts connections and does not answer"
    add_external(fleet_of, external_model(server.url), "UNAVAILABLE", reason=reason)
    await fleet_of.start_gateway(http_port=0)
    fleet_of.controller.publish()
    await fleet_of.until(lambda: "chat" in fleet_of.gateway.endpoints.table.view.models)
    got = await run_curl(fleet_of, "-d", '{"model":"chat"}', "/v1/completions")
    assert (got.status, reason.encode() in got.body) == (503, True)
