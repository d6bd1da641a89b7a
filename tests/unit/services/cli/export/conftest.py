"""A store with a small model, and engines that were, or were not, proven."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import save_master, tiny_model
from tests.unit.services.cli.export.exporting import RECIPE, Run, publish_plan


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


@pytest.fixture
def version(registry: Registry, tmp_path: Path) -> ModelVersion:
    (tmp_path / "source").mkdir()
    path = save_master(tiny_model(), tmp_path / "source")
    options = AddOptions(recipe=RECIPE)
    return add_model(registry, "tiny", str(path), options, Steps(is_quiet=True))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command on that store; fails unless it ends with `code`."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SMELT_STORE_URL", str(tmp_path / "store"))

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words])
        assert done.exit_code == code, done.output
        return done.output + (str(done.exception) if code else "")

    return run


@pytest.fixture
def publish(registry: Registry, tmp_path: Path) -> Callable[..., str]:
    """Publish what stands for a plan; its digest."""

    def publish(
        version: ModelVersion,
        generation: str,
        outcome: ProofOutcome = ProofOutcome.PASSED,
        **toolchain: str,
    ) -> str:
        return publish_plan(registry, version, generation, outcome, tmp_path, **toolchain)

    return publish
