"""A store with a small model, and engines that were, or were not, proven."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import EngineManifest, ModelVersion, Proof, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from tests.conformance.tiny_model import save_master, tiny_model
from tests.unit.services.cli.export.exporting import RECIPE, Run


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
        libraries = toolchain or {"tensorrt": "10.14"}
        key: dict[str, Any] = {
            "master_digest": version.master.digest,
            "kind": EngineKind.TENSORRT,
            "precision": Precision.FP32,
            "buckets": version.buckets,
            "proof_terms": proof_terms(version.recipe, Precision.FP32, None),
            "generation": generation,
            "toolchain": libraries,
        }
        plan = tmp_path / "engine.plan"
        plan.write_text(f"a plan for {generation} {outcome}")
        device = DeviceFacts(
            generation=generation, name="GPU", memory_gib=24, driver="1", toolchain=libraries
        )
        manifest = EngineManifest(
            key=BuildKey(**key), files={}, inputs=version.master.inputs,
            outputs=version.master.outputs, needs_master=False, build_duration_s=1,
            created_at="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        is_run = outcome is not ProofOutcome.NOT_RUN
        proof = Proof(
            outcome=outcome, reason="" if outcome is ProofOutcome.PASSED else "as it is",
            device=device if is_run else None, created_at="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        return registry.publish_engine(manifest, {"engine.plan": plan}, proof).digest

    return publish
