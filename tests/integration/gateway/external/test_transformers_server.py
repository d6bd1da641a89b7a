"""A real OpenAI-speaking server behind a gateway: `transformers serve` with a tiny seeded model."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest

from services.controller.external.external_check import ExternalFault, found_fault
from tests.benchmarks.dataplane.launch import free_port
from tests.benchmarks.external_server import write_tiny_chat
from tests.integration.gateway.external.conftest import add_external, external_model
from tests.integration.gateway.http.conftest import with_http

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

pytestmark = pytest.mark.slow

ASKED: Any = {"messages": [{"role": "user", "content": "w5 w6"}], "max_tokens": 8}


@contextmanager
def transformers_serve(model: Path, hub: Path) -> Iterator[int]:
    """The port of a server that has started."""
    (hub / "hub").mkdir(parents=True)
    port = free_port()
    program = str(Path(sys.executable).parent / "transformers")
    command = [program, "serve", str(model), "--port", str(port), "--device", "cpu"]
    env = dict(os.environ) | {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "Application startup complete" in line:
                    break
            else:
                pytest.fail("".join(lines[-20:]))
            yield port
        finally:
            process.terminate()
            # What it still writes must not keep it from ending.
            process.stderr.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Port and model of one server for all tests."""
    folder = tmp_path_factory.mktemp("chat")
    write_tiny_chat(folder)
    with transformers_serve(folder, tmp_path_factory.mktemp("home") / "hub") as port:
        yield port, str(folder)


async def streamed(client: openai.AsyncOpenAI, model: str) -> str:
    parts = await client.chat.completions.create(model=model, stream=True, **ASKED)
    return "".join([part.choices[0].delta.content or "" async for part in parts])


async def test_it_answers_behind_the_gateway_as_it_does_alone(
    fleet_of: "Fleet", server: tuple[int, str]
) -> None:
    port, model = server
    url = f"openai+http://127.0.0.1:{port}/v1"
    add_external(fleet_of, external_model(url, remote_name=model))
    fleet = await with_http(fleet_of, "external chat/1")
    behind = f"http://127.0.0.1:{fleet.gateway.http_port}/v1"
    async with (
        openai.AsyncOpenAI(base_url=url.removeprefix("openai+"), api_key="-") as alone,
        openai.AsyncOpenAI(base_url=behind, api_key="-", max_retries=0) as client,
    ):
        own = await alone.chat.completions.create(model=model, **ASKED)
        wanted = own.choices[0].message.content
        assert wanted
        answer = await client.chat.completions.create(model="chat", **ASKED)
        assert answer.choices[0].message.content == wanted
        assert await streamed(client, "chat") == await streamed(alone, model) != ""
    await fleet.until_metric(2, "smelt_requests_total", model="chat", version="1", code="OK")


async def test_the_controller_finds_it_ready_and_a_closed_port_unreachable(
    server: tuple[int, str],
) -> None:
    port, model = server
    url = f"openai+http://127.0.0.1:{port}/v1"
    async with aiohttp.ClientSession() as session:
        right = external_model(url, remote_name=model)
        assert await found_fault(right, session, {}, is_asking=True) == ""
        closed = external_model(f"openai+http://127.0.0.1:{free_port()}/v1", remote_name=model)
        fault = await found_fault(closed, session, {}, is_asking=True)
        assert fault.startswith(ExternalFault.UNREACHABLE)
