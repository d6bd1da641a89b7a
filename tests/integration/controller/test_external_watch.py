"""The controller's checks of real servers: what is wrong with one is told apart in words."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from services.contracts.external.dial import http_session
from services.contracts.external.external_model import ExternalModel
from services.controller.api.fleet_state import FleetState
from services.controller.events.serving_events import external_models
from services.controller.external import external_check, external_watch
from services.controller.external.external_watch import ExternalWatch, WantedExternal
from services.pb import fleet_v1_pb2 as fleet
from tests.integration.gateway.external.conftest import external_model
from tests.integration.gateway.external.kserve_server import KserveServer, kserve_server
from tests.integration.gateway.external.openai_server import OpenAiServer, openai_server


class Watched:
    """A watch, and the state that it shows."""

    def __init__(self, token_dir: Path) -> None:
        self.state = FleetState("memory://", epoch=1)
        self.watch = ExternalWatch(self.state, token_dir, check_every_s=0.01)

    async def follow(self, *models: ExternalModel, **fields: Any) -> None:
        given = {"weight": 0.0, "is_unloaded": False} | fields
        await self.watch.follow([WantedExternal(model, **given) for model in models])

    async def until(self, state: str, reason: str = "") -> fleet.ServedModel:
        """Wait until the only model is so."""
        async with asyncio.timeout(30):
            async for snapshot in self.state.watch():
                (model,) = snapshot.models
                if model.state == state and model.reason.startswith(reason):
                    return model
        raise AssertionError


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    for name in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S", "ASK_EVERY_S"):
        monkeypatch.setattr(external_watch, name, 0.01)
    monkeypatch.setattr(external_check, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(external_check, "QUESTION_TIMEOUT_S", 0.5)
    watched = Watched(tmp_path)
    yield watched
    await watched.watch.close()


@pytest.fixture
async def server() -> AsyncIterator[OpenAiServer]:
    async with openai_server() as server:
        yield server


@pytest.fixture
async def resnet() -> AsyncIterator[KserveServer]:
    async with kserve_server() as server:
        yield server


@pytest.fixture
def mute_port() -> Iterator[int]:
    """Connections are accepted there, by the kernel, and nobody answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return int(listening.getsockname()[1])


async def test_a_server_is_ready_fails_and_comes_back(
    watched: Watched, server: OpenAiServer
) -> None:
    await watched.follow(external_model(server.url), weight=3.0)
    assert (await watched.until("READY")).weight == 3.0
    await server.stop()
    failed = await watched.until("UNAVAILABLE", "unreachable: Cannot connect to host 127.0.0.1")
    assert "ssl" not in failed.reason, "plain HTTP"
    assert [(e.kind, e.mark) for e in external_models(fleet.FleetSnapshot(models=[failed]))] == [
        ("external_failed", "unreachable")
    ]
    await server.start()
    ready = await watched.until("READY")
    (event,) = external_models(fleet.FleetSnapshot(models=[ready]))
    assert (event.kind, event.why) == (
        "external_ready",
        f"'Qwen2.5' of an OpenAI server at {server.url}",
    )
    await watched.follow(external_model(server.url), is_unloaded=True)
    unloaded = await watched.until("UNAVAILABLE", "unloaded")
    assert unloaded.is_unloaded
    assert external_models(fleet.FleetSnapshot(models=[unloaded])) == []
    await watched.follow()
    assert not watched.state.models()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("silent", "slow: it accepts connections and does not answer GET /models within 0.5 s"),
        ("stuck", "stuck: it accepts connections and does not answer POST /chat/completions"),
        ("500", "stuck: POST /chat/completions is answered 500: {"),
        ("html500", "stuck: GET /models is answered 500: <html>"),
        ("html", "wrong protocol: GET /models is answered 200 with what is no JSON: <html>"),
    ],
)
async def test_faults_of_openai_servers(
    watched: Watched, server: OpenAiServer, fault: str, reason: str
) -> None:
    server.fault = fault
    await watched.follow(external_model(server.url))
    await watched.until("UNAVAILABLE", reason)


CHOICE = {"index": 0, "message": {"role": "assistant", "content": "one"}}
UNKNOWN = {"message": "The model does not exist", "type": "NotFoundError", "code": 404}


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (
            404,
            {"error": {"code": "model_not_found"}},
            "wrong model: it lists 'Qwen2.5', and POST /chat/completions is answered 404: {",
        ),
        (404, {"error": UNKNOWN}, "wrong model: it lists 'Qwen2.5', and POST "),
        (404, UNKNOWN, "wrong model: it lists 'Qwen2.5', and POST "),
        (
            200,
            {"model": "Qwen2.5", "choices": []},
            "wrong protocol: POST /chat/completions is answered without choices: {",
        ),
        (200, 7, "wrong protocol: POST /chat/completions is answered without choices: 7"),
    ],
)
async def test_openai_servers_that_list_a_model_and_do_not_have_it(
    watched: Watched, server: OpenAiServer, status: int, answer: Any, reason: str
) -> None:
    server.fault, server.answer = str(status), answer
    await watched.follow(external_model(server.url))
    await watched.until("UNAVAILABLE", reason)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        # A model without chat, of OpenAI and of a server that has no such path.
        (404, {"error": {"message": "not a chat model", "param": "model", "code": None}}),
        (404, {"detail": "Not Found"}),
        (400, ["no chat"]),
        (200, {"model": "Qwen2.5-2026-08-06", "choices": [CHOICE]}),
        (200, {"model": "Qwen2.5@main", "choices": [CHOICE]}),
        (200, {"choices": [CHOICE]}),
        # A router's alias.
        (200, {"model": "Llama", "choices": [CHOICE]}),
    ],
)
async def test_openai_servers_that_have_the_model(
    server: OpenAiServer, status: int, answer: Any
) -> None:
    server.fault, server.answer = str(status), answer
    async with http_session() as session:
        model = external_model(server.url)
        assert await external_check.found_fault(model, session, {}, is_asking=True) == ""


async def test_an_answer_that_comes_in_parts_is_read_whole(server: OpenAiServer) -> None:
    # Beyond what one read of a socket takes.
    server.names = (*(f"router/model-{number}" for number in range(20_000)), "Qwen2.5")
    async with http_session() as session:
        model = external_model(server.url)
        assert await external_check.found_fault(model, session, {}, is_asking=False) == ""


# Half a surrogate, which no message of gRPC takes; megabytes; and what terminals obey.
@pytest.mark.parametrize("name", ["\ud800", "x" * 3_000_000, "\x1b[2J\x00"])
async def test_a_server_of_any_names_is_shown_short_and_as_text(
    watched: Watched, server: OpenAiServer, name: str
) -> None:
    server.names = (name,)
    await watched.follow(external_model(server.url))
    found = await watched.until("UNAVAILABLE", "wrong model: it has no model 'Qwen2.5'; it has: ")
    assert len(found.reason) < 300
    assert found.reason.isprintable()
    # The controller's next pass over its store.
    await watched.follow(external_model(server.url))


async def test_a_server_of_too_many_models_is_said_to_be_one(
    watched: Watched, server: OpenAiServer
) -> None:
    server.names = tuple(f"router/model-{number}" for number in range(100_000))
    await watched.follow(external_model(server.url))
    await watched.until("UNAVAILABLE", "wrong protocol: GET /models is answered 200 with more than")


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (3_000_000, "wrong model: asked for 'resnet', it says it is 'xxx"),
        (5_000_000, "wrong protocol: ModelMetadata is answered RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_kserve_server_of_a_long_name_is_shown_short(
    watched: Watched, resnet: KserveServer, size: int, reason: str
) -> None:
    resnet.name = "x" * size
    await watched.follow(external_model(resnet.url, remote_name="resnet"))
    assert len((await watched.until("UNAVAILABLE", reason)).reason) < 300


async def test_a_server_of_another_model_or_with_another_token(
    watched: Watched, server: OpenAiServer, tmp_path: Path
) -> None:
    await watched.follow(external_model(server.url, remote_name="Llama", token="llm"))
    await watched.until("UNAVAILABLE", "refusing: model 'chat': token 'llm' is not available")
    (tmp_path / "llm").write_text("right\nand another")
    await watched.until(
        "UNAVAILABLE", "refusing: model 'chat': token 'llm' is not available: it is o"
    )
    server.token = "right"
    (tmp_path / "llm").write_text("wrong")
    await watched.until("UNAVAILABLE", "refusing: GET /models is answered 401: ")
    (tmp_path / "llm").unlink()
    (tmp_path / "llm").write_text("right")
    await watched.until("UNAVAILABLE", "wrong model: it has no model 'Llama'; it has: Qwen2.5")
    server.names = ("Llama",)
    await watched.until("READY")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", ""),
        ("silent", "slow: it accepts connections and does not answer ModelMetadata"),
        ("unready", "stuck: it says that 'resnet' is not ready"),
        ("stuck", "stuck: it accepts connections and does not answer ModelInfer within 0.5 s"),
        ("other", "wrong protocol: ModelMetadata is answered with another message"),
    ],
)
async def test_faults_of_kserve_servers(
    watched: Watched, resnet: KserveServer, fault: str, reason: str
) -> None:
    resnet.fault = fault
    await watched.follow(external_model(resnet.url, remote_name="resnet"))
    await watched.until("UNAVAILABLE" if fault else "READY", reason)


@pytest.mark.parametrize("rpc", ["ModelReady", "ModelInfer"])
async def test_kserve_servers_that_answer_with_junk(
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rpc: str,
) -> None:
    async def junk(*_: Any) -> bytes:
        return b"\xff"

    monkeypatch.setattr(KserveServer, {"ModelReady": "_ready", "ModelInfer": "_infer"}[rpc], junk)
    async with kserve_server() as server:
        await watched.follow(external_model(server.url, remote_name="resnet"))
        await watched.until("UNAVAILABLE", f"wrong protocol: {rpc} is answered with another mess")
    assert not any(record.exc_info for record in caplog.records)


async def test_what_is_no_kserve_server(
    watched: Watched, resnet: KserveServer, server: OpenAiServer, mute_port: int, free_port: int
) -> None:
    resnet.name = "other"
    await watched.follow(external_model(resnet.url, remote_name="resnet"))
    await watched.until("UNAVAILABLE", "wrong model: asked for 'resnet', it says it is 'oth")
    await watched.follow(external_model(f"grpc://127.0.0.1:{free_port}", version=2))
    await watched.until("UNAVAILABLE", "unreachable: ")
    await watched.follow(external_model(f"grpc://127.0.0.1:{mute_port}", version=3))
    await watched.until("UNAVAILABLE", "slow: it accepts connections and does not answer ModelM")
    await watched.follow(external_model(f"grpc://127.0.0.1:{server.port}", version=4))
    await watched.until("UNAVAILABLE", "unreachable: ")
    await watched.follow(external_model(f"openai+http://127.0.0.1:{mute_port}", version=5))
    await watched.until("UNAVAILABLE", "slow: ")
