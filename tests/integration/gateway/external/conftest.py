"""A gateway before external servers."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

from services.contracts.external.external_model import ExternalModel
from tests.integration.gateway.external.openai_server import OpenAiServer, openai_server
from tests.integration.gateway.http.conftest import with_http

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


def external_model(url: str, name: str = "chat", version: int = 1, **fields: Any) -> ExternalModel:
    """As `smelt models add` makes it."""
    return ExternalModel(name=name, version=version, url=url, **{"remote_name": "Qwen2.5"} | fields)


def add_external(fleet: "Fleet", model: ExternalModel, state: str = "READY", **fields: Any) -> None:
    """Let the controller show it; takes effect with `publish`."""
    fleet.controller.snapshot.models.add(
        name=model.name,
        version=model.version,
        external_json=model.canonical_json(),
        state=state,
        **fields,
    )


@pytest.fixture
async def server() -> AsyncIterator[OpenAiServer]:
    async with openai_server() as server:
        yield server


@pytest.fixture
async def chat(fleet_of: "Fleet", server: OpenAiServer) -> "Fleet":
    """A gateway with HTTP before the server, whose model is `chat` here."""
    add_external(fleet_of, external_model(server.url))
    return await with_http(fleet_of, "external chat/1")


@pytest.fixture
async def client(chat: "Fleet") -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"http://127.0.0.1:{chat.gateway.http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="of the client", max_retries=0) as client:
        yield client
