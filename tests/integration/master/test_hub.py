"""Models of Hugging Face's hub, by a server of the same endpoints on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from huggingface_hub import constants

from compiler_worker.master.hub.snapshot import fetched
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import HubModel, OnnxFile, TransformersFolder, source_from_text
from services.contracts.errors import InvalidModelError
from tests.integration.master.hub_server import COMMIT, HubServer, served_hub

ENCODER = {"architectures": ["BertModel"]}


def write_onnx(path: Path) -> None:
    """With its weights beside it, as a large model's are."""
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", 64]) for n in "xy")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    path.parent.mkdir(exist_ok=True)
    onnx.save(
        model, path, save_as_external_data=True, location=f"{path.name}_data", size_threshold=0
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What is in the repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ENCODER))
    return folder


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with served_hub(repository) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield server


def source(text: str = "hf://org/model") -> HubModel:
    found = source_from_text(text)
    assert isinstance(found, HubModel)
    return found


def refusal(text: str = "hf://org/model") -> str:
    with pytest.raises(InvalidModelError) as refused, fetched(source(text), print):
        pass
    return str(refused.value)


def test_onnx_comes_before_safetensors_and_no_variant_of_it(
    repository: Path, hub: HubServer, tmp_path: Path
) -> None:
    for name in ("model", "model_quantized", "model_O4"):
        write_onnx(repository / "onnx" / f"{name}.onnx")
    for name in ("model.safetensors", "pytorch_model.bin", "README.md"):
        (repository / name).write_bytes(b"large")
    messages: list[str] = []
    with fetched(source("hf://org/model@v1"), messages.append) as found:
        assert found.origin == f"hf://org/model@{COMMIT}"
        assert found.words[0] == f"{found.origin}: took onnx/model.onnx"
        assert found.model
        assert found.source == OnnxFile(path=found.model)
        # What is read is no link out of the folder.
        opened = open_master(found.source, tmp_path / "master", print)
    assert opened.num_parameters == 64 * 64
    assert sorted(hub.brought) == ["config.json", "onnx/model.onnx", "onnx/model.onnx_data"]
    assert "Bearer hf_secret" in hub.tokens
    assert any("100%" in each for each in messages), messages
    assert not list((tmp_path / "cache").glob("*/.smelt-*"))


def test_a_variant_that_is_named(repository: Path, hub: HubServer) -> None:
    for name in ("model", "model_quantized"):
        write_onnx(repository / "onnx" / f"{name}.onnx")
    text = "hf://org/model@main/onnx/model_quantized.onnx"
    with fetched(source(text), print) as found:
        assert found.origin == f"hf://org/model@{COMMIT}/onnx/model_quantized.onnx"
        assert found.model
        assert found.model.name == "model_quantized.onnx"
    assert "onnx/model.onnx" not in hub.brought


def test_safetensors_alone_are_exported(repository: Path, hub: HubServer) -> None:
    for name in ("model.safetensors", "adapter_model.safetensors"):
        (repository / name).write_bytes(b"weights")
    with fetched(source(), print) as found:
        assert found.source == TransformersFolder(folder=found.folder)
    assert sorted(hub.brought) == ["config.json", "model.safetensors"]


def test_once_brought_it_needs_no_network(
    repository: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "model.safetensors").write_bytes(b"weights")
    with fetched(source(), print) as found:
        origin = found.origin
    hub.brought.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with fetched(source(), print) as found:
        assert found.origin == origin
    assert not hub.brought
    assert "HF_HUB_OFFLINE is set, and the cache" in refusal("hf://org/other")


def test_no_network(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    why = refusal()
    assert "http://127.0.0.1:9 cannot be reached (ConnectError" in why
    assert "check the network, or HF_ENDPOINT" in why


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hf://org/none", "org/none found, or it is private: correct ORG/MODEL, or set HF_TOKEN"),
        ("hf://org/model@v2", "org/model has no branch, tag or commit 'v2'"),
        ("hf://gated/model", "gated/model is gated: ask for access there, and set HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses(hub: HubServer, text: str, words: str) -> None:
    why = refusal(text)
    assert why.startswith(f"{text}: ")
    assert words in why


def test_a_model_that_writes_text_is_refused_before_its_weights_come(
    repository: Path, hub: HubServer
) -> None:
    (repository / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (repository / "model.safetensors").write_bytes(b"gigabytes")
    assert "LlamaForCausalLM found, which writes text token by token" in refusal()
    assert hub.brought == ["config.json"]


def test_nothing_that_can_be_served(repository: Path, hub: HubServer) -> None:
    (repository / "model.gguf").write_bytes(b"GGUF")
    assert "config.json, model.gguf found, config.json with onnx/model.onnx or" in refusal()
    write_onnx(repository / "model_int8.onnx")
    assert "name the file: hf://org/model/model_int8.onnx" in refusal()
