"""RPCs that change something, asked by unmodified tritonclient of a gateway that allows them."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.transport.frames import InferFrame
from services.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

Ask = Callable[[InferenceServerClient], Awaitable[Any]]


@pytest.fixture
async def client(echo_fleet: "Fleet") -> InferenceServerClient:
    """Of a gateway that takes RPCs which change something."""
    await echo_fleet.start_gateway(admin=True)
    await echo_fleet.until_ready("r1", "r2")
    return await echo_fleet.client()


async def _states(client: InferenceServerClient) -> list[tuple[str, str]]:
    index = await client.get_model_repository_index()
    return [(model.state, model.reason) for model in index.models]


async def test_a_model_is_unloaded_without_losing_what_runs_and_loaded_again(
    echo_fleet: "Fleet", client: InferenceServerClient, inputs: Callable[..., Any]
) -> None:
    assert {"model_repository", "logging"} <= set((await client.get_server_metadata()).extensions)
    begun, unloaded = asyncio.Event(), asyncio.Event()

    async def answer_late(frame: InferFrame) -> bytes:
        begun.set()
        await unloaded.wait()
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = answer_late
    running = asyncio.create_task(client.infer("echo", inputs(3.0)))
    await begun.wait()
    await client.unload_model("echo", unload_dependents=True)
    assert not await client.is_model_ready("echo")
    assert await _states(client) == [("UNAVAILABLE", "unloaded")]
    with pytest.raises(InferenceServerException, match="no ready replica: unloaded") as caught:
        await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    unloaded.set()
    assert (await running).as_numpy("y").tolist() == [[3.0] * 4]
    await client.load_model("echo")
    await client.load_model("echo")
    assert await _states(client) == [("READY", "")]
    await client.infer("echo", inputs())
    assert echo_fleet.controller.asked_to_serve == [("echo", s) for s in (False, True, True)]


async def test_a_controller_that_never_answers_is_not_waited_for_without_end(
    echo_fleet: "Fleet", client: InferenceServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.api.model_control.SET_SERVED_TIMEOUT_S", 0.05)
    monkeypatch.setattr(echo_fleet.controller, "is_silent", True)
    async with asyncio.timeout(60):
        with pytest.raises(InferenceServerException, match="did not answer within") as caught:
            await client.load_model("echo")
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


async def test_a_fleet_that_never_follows_is_not_waited_for_without_end(
    echo_fleet: "Fleet", client: InferenceServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.api.model_control.FOLLOW_TIMEOUT_S", 0.05)
    monkeypatch.setattr(echo_fleet.controller, "is_late", True)
    async with asyncio.timeout(60):
        with pytest.raises(InferenceServerException, match="did not get the state of 'echo'"):
            await client.unload_model("echo")


_REFUSED: dict[str, tuple[Ask, str, str]] = {
    "unknown model": (lambda c: c.load_model("nope"), "'nope' not found", "NOT_FOUND"),
    "another configuration": (
        lambda c: c.load_model("echo", config='{"max_batch_size": "16"}'),
        "config.max_batch_size: expected 8, as its recipe says, got 16; .* `smelt models add`",
        "UNIMPLEMENTED",
    ),
    "no configuration": (
        lambda c: c.load_model("echo", config='{"max_batch": 8}'),
        "ModelConfig in JSON.*max_batch",
        "INVALID_ARGUMENT",
    ),
    "configuration of an unknown model": (
        lambda c: c.load_model("nope", config="{}"),
        "'nope' not found",
        "NOT_FOUND",
    ),
    "files": (
        lambda c: c.load_model("echo", config="{}", files={"file:1/m.onnx": b"x"}),
        "not offered; models come from the store",
        "UNIMPLEMENTED",
    ),
    "level with a gap": (
        lambda c: c.update_log_settings({"log_error": False}),
        "which needs log_error",
        "INVALID_ARGUMENT",
    ),
    "file": (
        lambda c: c.update_log_settings({"log_file": "/tmp/x"}),
        "cannot be set here",
        "INVALID_ARGUMENT",
    ),
}


async def test_a_model_is_loaded_with_its_own_configuration(
    echo_fleet: "Fleet", client: InferenceServerClient
) -> None:
    """What model_control of Triton's examples does, with the configuration as it is."""
    tensor = '{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}'
    for config in ("{}", f'{{"max_batch_size": "8", "input": [{tensor}]}}'):
        await client.load_model("echo", config=config)
    assert echo_fleet.controller.asked_to_serve == [("echo", True)] * 2


@pytest.mark.parametrize("what", _REFUSED)
async def test_what_cannot_be_done_says_why(client: InferenceServerClient, what: str) -> None:
    ask, message, status = _REFUSED[what]
    with pytest.raises(InferenceServerException, match=message) as caught:
        await ask(client)
    assert caught.value.status() == f"StatusCode.{status}"


async def test_a_model_that_cannot_be_made_ready_says_what_is_missing(
    echo_fleet: "Fleet", client: InferenceServerClient
) -> None:
    echo_fleet.controller.why_not_ready = "out of memory"
    with pytest.raises(InferenceServerException, match="'echo' cannot be served now: out of"):
        await client.load_model("echo")
    await echo_fleet.controller.stop()
    with pytest.raises(InferenceServerException) as caught:
        await client.load_model("echo")
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@pytest.fixture
def root_level() -> Iterator[None]:
    """Puts the log level of this process back."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.mark.usefixtures("root_level")
async def test_log_settings_set_the_level_of_the_process(
    client: InferenceServerClient, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"log_verbose_level": 0, "log_info": False, "log_warning": True, "log_error": True}
    answer = await client.update_log_settings(settings, as_json=True)
    assert logging.getLogger().level == logging.WARNING
    assert answer["settings"]["log_info"] == {"bool_param": False}
    await client.update_log_settings({"log_info": True, "log_verbose_level": 1})
    assert logging.getLogger().level == logging.DEBUG
    found = await client.get_log_settings(as_json=True)
    assert found["settings"]["log_verbose_level"] == {"uint32_param": 1}
    silent = dict.fromkeys(("log_info", "log_warning", "log_error"), False)
    await client.update_log_settings(silent | {"log_verbose_level": 0})
    assert "a client set the log level to CRITICAL" in caplog.messages


async def test_the_servers_name_is_a_setting(echo_fleet: "Fleet") -> None:
    """simple_grpc_health_metadata of Triton's examples wants "triton"."""
    assert (await (await echo_fleet.client()).get_server_metadata()).name == "smelt"
    await echo_fleet.start_gateway(server_name="triton")
    assert (await (await echo_fleet.client()).get_server_metadata()).name == "triton"


async def test_trace_settings_are_there_where_traces_are(
    echo_fleet: "Fleet", client: InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException, match="on with OTEL_TRACES_EXPORTER=otlp"):
        await client.get_trace_settings()
    tracing = Tracing(InMemorySpanExporter(), ALWAYS_ON, "tested")
    await echo_fleet.start_gateway(tracing)
    with pytest.raises(InferenceServerException, match="on with SMELT_GATEWAY_ADMIN=true$"):
        await (await echo_fleet.client()).get_trace_settings()
    await echo_fleet.start_gateway(tracing, admin=True)
    client = await echo_fleet.client()
    assert "trace" in (await client.get_server_metadata()).extensions
    await client.update_trace_settings(settings={"trace_rate": "7"})
    assert list((await client.get_trace_settings()).settings["trace_rate"].value) == ["7"]
    tracing.close()


async def test_tokens_need_the_verb(echo_fleet: "Fleet", tmp_path: Path) -> None:
    entries = [
        {
            "name": verb,
            "sha256": hashlib.sha256(verb.encode()).hexdigest(),
            "grants": [{"verbs": [verb]}],
        }
        for verb in ("infer", "load", "admin")
    ]
    (tmp_path / "access.yaml").write_text(yaml.safe_dump({"tokens": entries}))
    file = tmp_path / "access.yaml"
    await echo_fleet.start_gateway(admin=True, shared_memory=True, access_file=file)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()

    async def may(ask: Callable[..., Awaitable[Any]], token: str) -> bool:
        try:
            await ask(headers={"authorization": f"Bearer {token}"})
        except InferenceServerException as error:
            return error.status() != "StatusCode.PERMISSION_DENIED"
        return True

    async def load(headers: dict[str, str]) -> None:
        await client.load_model("echo", headers=headers)

    assert [await may(load, verb) for verb in ("infer", "load", "admin")] == [False, True, False]
    # The controller's event trail names the token that asked.
    assert echo_fleet.controller.who_asked == ["load"]
    for ask in (client.get_log_settings, client.unregister_system_shared_memory):
        assert [await may(ask, verb) for verb in ("infer", "load", "admin")] == [False, False, True]
