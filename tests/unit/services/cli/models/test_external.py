"""External models on the command line: added, listed, explained, weighted, removed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import fleet_saying

URL = "openai+http://llm:8000/v1"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def run(*words: str) -> str:
    return CliRunner().invoke(app, words, catch_exceptions=False).stdout


def test_from_first_to_last(registry: Registry) -> None:
    said = run("models", "add", "chat", URL, "--remote-name", "Qwen2.5", "--token", "llm")
    assert "chat version 1 is 'Qwen2.5' of an OpenAI server at openai+http://llm:8000/v1" in said
    told = json.loads(run("models", "add", "chat", "grpc://t:8001", "--json"))
    assert (told["version"], told["protocol"], told["remote_name"]) == (2, "kserve", "chat")
    (listed,) = json.loads(run("models", "list", "--json"))["models"]
    assert (listed["source"], listed["versions"]) == ("grpc://t:8001", [1, 2])
    assert URL in run("models", "list", "--all-versions", "--wide")
    assert "95.0%" in run("models", "weights", "chat", "1=95", "2=5")
    assert "is unloaded" in run("models", "unload", "chat")
    assert "is to be served" in run("models", "load", "chat")
    assert "no engine is built for it, and nothing is planned" in run("why", "chat")
    with pytest.raises(NotFoundError, match="it has no master, and so no engines"):
        run("build", "chat")
    removed = run("models", "remove", "chat", "--version", "2")
    assert "version 1 is to serve" in removed
    assert "Its server gets no more requests" in removed
    assert "nothing is left to serve" in run("models", "remove", "chat")
    assert registry.external_names() == []


def test_options_of_masters_are_refused(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("{}")
    with pytest.raises(InvalidRequestError, match="leave out --recipe"):
        run("models", "add", "chat", URL, "--recipe", str(tmp_path / "recipe.yaml"))
    with pytest.raises(InvalidRequestError, match="URL 'grpc://h': expected openai"):
        run("models", "add", "chat", "grpc://h")
    with pytest.raises(InvalidRequestError, match="--token: "):
        run("models", "add", "chat", URL, "--token", "../x")


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--remote-name", "the URL of a server as source"),
        ("--remote-version", "the URL of a KServe server as source"),
        ("--token", "the URL of a server as source"),
        ("--args", "ray.openai://PACKAGE.MODULE:NAME as source"),
        ("--manifest", "k8s. and the URL of a server as source"),
    ],
)
def test_options_of_servers_are_refused_beside_a_master(option: str, fix: str) -> None:
    why = f"m.onnx: a model with a master takes no {option}: leave it out, or give {fix}"
    with pytest.raises(InvalidRequestError, match=why):
        run("models", "add", "chat", "m.onnx", option, "x")


def test_what_the_fleet_found_is_shown(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("models", "add", "chat", URL)
    run("models", "add", "chat", "grpc://t:8001")
    first, second = (each.canonical_json() for each in registry.external_versions("chat"))
    why = "stuck: it accepts connections and does not answer ModelInfer within 30 s"
    models = [
        fleet.ServedModel(name="chat", version=1, external_json=first, state="READY"),
        fleet.ServedModel(
            name="chat", version=2, external_json=second, state="UNAVAILABLE", reason=why
        ),
    ]
    snapshot = fleet.FleetSnapshot(models=models, store_url=str(tmp_path / "store"))
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        status = run("status", "--wide")
        assert f"external: {URL}" in status
        assert f"chat version 2: {why}" in status
        assert f"UNAVAILABLE, {why}" in run("why", "chat")
        assert json.loads(run("why", "chat", "--version", "1", "--json"))["external"] == (
            json.loads(first)
            | {"source": URL, "protocol": "openai", "state": "READY", "reason": ""}
        )
        (listed,) = json.loads(run("models", "list", "--json"))["models"]
        assert listed["serving"] == [1]
        states = json.loads(run("models", "weights", "chat", "--json"))["states"]
        assert states["1"] == {"state": "ready", "served_share": 1.0}


def test_an_application_of_ray_serve_with_its_arguments(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("llm_configs: [{model_id: qwen}]\n")
    add = ("models", "add", "chat", "ray+openai://ray.serve.llm:build_openai_app")
    assert "'chat' of the Ray Serve application ray.serve" in run(*add, "--args", str(file))
    (version,) = registry.external_versions("chat")
    assert version.args == {"llm_configs": [{"model_id": "qwen"}]}
    with pytest.raises(InvalidRequestError, match="arguments are of ray"):
        run("models", "add", "chat", URL, "--args", str(file))
    file.write_text("- a\n")
    with pytest.raises(InvalidRequestError, match="--args: Input should be a valid dictionary"):
        run(*add, "--args", str(file))
    file.write_text("a: [\n")
    with pytest.raises(InvalidRequestError, match=r"--args .*llm.yaml: line 2, column 1"):
        run(*add, "--args", str(file))
    with pytest.raises(InvalidRequestError, match=r"--args gone.yaml: No such file or directory$"):
        run(*add, "--args", "gone.yaml")
