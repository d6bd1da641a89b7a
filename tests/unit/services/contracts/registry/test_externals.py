"""External models in the store: numbered, removed, and apart from models with a master."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.contracts.errors import InvalidRequestError, NotFoundError
from services.contracts.external.external_model import ExternalModel, ServerProtocol
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store

MASTER = MasterRecord(digest="d" * 64, files={}, inputs=(), outputs=(), opset=20, num_parameters=0)


def external(url: str = "openai+http://h:8000/v1", **fields: str) -> ExternalModel:
    return ExternalModel(name="chat", version=0, url=url, **{"remote_name": "Qwen"} | fields)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


def add_master(registry: Registry, name: str) -> None:
    registry.add_model_version(
        name=name, master=MASTER, recipe=Recipe(), source="s", source_fingerprint="f"
    )


def test_versions_are_numbered_and_removed(registry: Registry) -> None:
    assert registry.add_external_version(external()).version == 1
    assert registry.add_external_version(external()).version == 1
    second = registry.add_external_version(external(token="llm"))
    assert registry.external_versions("chat")[-1] == second
    registry.set_version_weights("chat", {1: 1, 2: 1})
    with pytest.raises(NotFoundError, match="no version 3; there are: 1, 2"):
        registry.remove_external("chat", 3)
    assert registry.remove_external("chat", 2) == [2]
    assert registry.require_version("chat") == 1
    # A number is not given again.
    assert registry.add_external_version(external(token="llm")).version == 3
    assert registry.remove_external("chat") == [1, 3]
    assert registry.external_names() == []


def test_nothing_that_wants_a_master_meets_one(registry: Registry) -> None:
    registry.add_external_version(external())
    assert registry.model_names() == []
    assert registry.versions("chat") == []
    why = r"'chat' is external, 'Qwen' of an OpenAI server at .*: it has no master, and so no eng"
    with pytest.raises(NotFoundError, match=why):
        registry.model_version("chat")


def test_a_name_is_of_one_kind_for_good(registry: Registry) -> None:
    registry.add_external_version(external())
    registry.remove_external("chat")
    with pytest.raises(InvalidRequestError, match="'chat' is, or was, external"):
        add_master(registry, "chat")
    add_master(registry, "mini")
    with pytest.raises(InvalidRequestError, match="'mini' has, or had, versions with a master"):
        registry.add_external_version(external().model_copy(update={"name": "mini"}))


@pytest.mark.parametrize(
    ("url", "protocol", "place"),
    [
        ("openai+http://h:8000/v1", ServerProtocol.OPENAI, ("h", 8000)),
        ("openai+https://h/v1", ServerProtocol.OPENAI, ("h", 443)),
        ("grpc://[::1]:8001", ServerProtocol.KSERVE, ("::1", 8001)),
        ("grpcs://h:1", ServerProtocol.KSERVE, ("h", 1)),
    ],
)
def test_urls(url: str, protocol: ServerProtocol, place: tuple[str, int]) -> None:
    assert (external(url).protocol, external(url).place) == (protocol, place)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/v1",
        "grpc://h",
        "grpc://h:1/x",
        "openai+http://",
        "openai+http://a:b@h/v1",
        "openai+http://h/v1?key=x",
        "openai+ftp://h",
        "grpc://h:x",
        "ray+openai://app",
        "ray+openai://a.b:",
        "ray+openai://:app",
        "ray+openai://a/b:c",
        "ray+grpc://a:b",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValidationError):
        external(url)


def test_a_token_names_no_path() -> None:
    with pytest.raises(ValidationError):
        external(token="../secret")


def test_an_application_of_ray_serve(registry: Registry) -> None:
    llms = {"llm_configs": [{"model_loading_config": {"model_id": "qwen"}}]}
    source = "ray+openai://ray.serve.llm:build_openai_app"
    draft = ExternalModel(name="chat", version=0, url=source, args=llms, remote_name="qwen")
    kept = registry.add_external_version(draft)
    assert registry.external_version("chat", 1) == kept
    assert (kept.import_path, kept.args) == ("ray.serve.llm:build_openai_app", llms)
    assert kept.protocol is ServerProtocol.OPENAI
    assert kept.words == "'qwen' of the Ray Serve application ray.serve.llm:build_openai_app"
    asked = kept.behind("10.0.0.1:4711")
    assert (asked.http_url, asked.args, asked.import_path) == (
        "http://10.0.0.1:4711/external/chat/1/v1",
        {},
        "",
    )
    # An older gateway reads the document of a plain server.
    assert b"args" not in asked.canonical_json()
    assert registry.add_external_version(draft).version == 1
    assert registry.add_external_version(draft.model_copy(update={"args": {}})).version == 2
    with pytest.raises(ValidationError, match="arguments are of ray"):
        ExternalModel(name="c", version=0, url="grpc://h:1", args=llms, remote_name="c")
