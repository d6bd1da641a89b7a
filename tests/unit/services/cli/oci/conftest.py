"""A store with a version and its engines, and the commands that send it through a registry."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compiler_worker.master.stored import store_onnx
from services.cli.main import app
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import save_master, tiny_model
from tests.unit.services.cli.export.exporting import RECIPE, publish_plan
from tests.unit.services.cli.oci.registries import (
    AnyRegistry,
    StubRegistry,
    docker_registry,
    stub_registry,
)


class Commands:
    """`smelt` on a store and home of its own, below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.store = open_store(str(folder / "store"))
        self.registry = Registry(self.store, folder / "cache")

    def __call__(self, *words: str, code: int = 0, **environment: str) -> str:
        """What it prints, and its error; fails unless it ends with `code`."""
        home = {"SMELT_HOME": str(self.folder), "SMELT_STORE_URL": str(self.folder / "store")}
        done = CliRunner().invoke(app, [*words], env=home | environment)
        assert done.exit_code == code, f"{done.output} {done.exception}"
        return done.output + (f"{type(done.exception).__name__}: {done.exception}" if code else "")

    def json(self, *words: str, **environment: str) -> Any:
        return json.loads(self(*words, "--json", **environment))

    def add(self, seed: int = 7, **given: Path) -> ModelVersion:
        """Publish a version of the model `tiny`."""
        source = self.folder / f"source{seed}"
        source.mkdir()
        stored = store_onnx(save_master(tiny_model(seed), source), source / "master")
        return self.registry.add_model_version(
            name="tiny",
            master=self.registry.publish_master(stored),
            recipe=RECIPE,
            source="tiny.onnx",
            source_fingerprint=f"print {seed}",
            **given,
        )

    def build(
        self,
        version: ModelVersion,
        outcome: ProofOutcome = ProofOutcome.PASSED,
        generation: str = "cuda-sm89",
    ) -> str:
        """Publish what stands for an engine; its digest."""
        return publish_plan(self.registry, version, generation, outcome, self.folder)

    def contents(self) -> set[str]:
        """All that store and cache hold but the store's identity."""
        places = (self.folder / "store", self.folder / "cache")
        files = (path for place in places for path in place.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in files if "selftest" not in str(path)}


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def here(tmp_path: Path) -> Commands:
    """Where models are made."""
    return Commands(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Commands:
    """Another host, with an empty store."""
    return Commands(tmp_path / "there")


@pytest.fixture
def stub() -> Iterator[StubRegistry]:
    with stub_registry() as registry:
        yield registry


@pytest.fixture(params=["stub", pytest.param("docker-registry", marks=pytest.mark.slow)])
def any_registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyRegistry]:
    if request.param == "stub":
        with stub_registry() as registry:
            yield registry
    else:
        (tmp_path / "registry").mkdir()
        with docker_registry(tmp_path / "registry") as real:
            yield real
