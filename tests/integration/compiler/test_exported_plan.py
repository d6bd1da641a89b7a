"""A plan that TensorRT-RTX built leaves for Triton only after a proof."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import Proof, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import save_master, tiny_model


def test_a_real_plan_leaves_once_it_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SMELT_STORE_URL", str(tmp_path / "store"))
    source = str(save_master(tiny_model(), tmp_path))
    (tmp_path / "recipe.yaml").write_text("precisions: [fp32]\nkinds: [tensorrt]\n")
    runner = CliRunner()
    for words in (
        ["models", "add", "tiny", source, "--recipe", str(tmp_path / "recipe.yaml")],
        ["build", "tiny", "--generation", "cuda-sm89", "--kind", "tensorrt"],
    ):
        assert runner.invoke(app, words).exit_code == 0
    export = ["export", "triton", str(tmp_path / "out"), "--backend", "tensorrt_plan"]
    assert "not proven" in str(runner.invoke(app, export).exception)

    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    (engine,) = registry.engines(registry.model_version("tiny").master.digest)
    device = DeviceFacts(
        generation="cuda-sm89",
        name="NVIDIA L4",
        memory_gib=24,
        driver="580",
        toolchain=engine.manifest.key.toolchain,
    )
    moment = "2026-01-01T00:00:00+00:00"
    proof = Proof(outcome=ProofOutcome.PASSED, device=device, created_at=moment)
    registry.add_proof(engine.digest, proof)
    done = runner.invoke(app, export)
    assert done.exit_code == 0, done.exception
    text = (tmp_path / "out" / "tiny" / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert dict(config.cc_model_filenames) == {"8.9": "model_sm89.plan"}
    written = (tmp_path / "out" / "tiny" / "1" / "model_sm89.plan").read_bytes()
    assert written == (registry.materialise_engine(engine) / "engine.plan").read_bytes()
