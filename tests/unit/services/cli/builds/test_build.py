"""`smelt build`: what its exit code and its last lines say."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compiler_worker.building.pipeline import BuildReport
from services.cli.builds.build import again_lines
from services.cli.main import app
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import InvalidRequestError
from services.contracts.registry.registry import Registry
from services.contracts.security.signing import TrustRoot
from services.contracts.store.object_store import open_store
from tests.conformance.tiny_model import save_master, tiny_model
from tests.process_server import forked_children
from tests.signing_keys import new_keys
from tests.unit.services.controller import build_world as world

__all__ = ["forked_children"]  # a fixture


def test_nothing_but_skipped_is_a_failure_with_its_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    source = str(save_master(tiny_model(), tmp_path))
    added = CliRunner().invoke(app, ["models", "add", "tiny", source], catch_exceptions=False)
    assert added.exit_code == 0
    # A TensorRT engine needs a GPU, which a CPU generation has not, wherever this runs.
    words = ["build", "tiny", "--kind", "tensorrt", "--generation", "cpu-x86_64-v3"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 1, done.output
    as_json = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert report["records"] == report["up_to_date"] == []
    assert report["skipped"]
    assert all(skipped["reason"] in done.stdout for skipped in report["skipped"])


def test_a_kind_that_the_recipe_leaves_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    source = str(save_master(tiny_model(), tmp_path))
    (tmp_path / "r.yaml").write_text("kinds: [onnxruntime]\n")
    add = ["models", "add", "tiny", source, "--recipe", str(tmp_path / "r.yaml")]
    assert CliRunner().invoke(app, add, catch_exceptions=False).exit_code == 0
    with pytest.raises(InvalidRequestError, match=rf"--kind openvino: .* add tiny {source} "):
        CliRunner().invoke(app, ["build", "tiny", "--kind", "openvino"], catch_exceptions=False)
    assert Registry(open_store(str(tmp_path / "home" / "store")), tmp_path).engines() == []


@pytest.mark.usefixtures("forked_children")
def test_what_is_built_by_hand_is_signed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    source = str(save_master(tiny_model(), tmp_path))
    (tmp_path / "r.yaml").write_text("inputs: {ids: {high: 40}, mask: {role: mask}}\n")
    add = ["models", "add", "tiny", source, "--recipe", str(tmp_path / "r.yaml")]
    assert CliRunner().invoke(app, add, catch_exceptions=False).exit_code == 0
    build = ["build", "tiny", "--kind", "onnxruntime"]
    monkeypatch.setenv("SMELT_SIGNING_KEY", str(tmp_path / "missing.pem"))
    with pytest.raises(InvalidRequestError, match=r"missing\.pem: No such file"):
        CliRunner().invoke(app, build, catch_exceptions=False)
    keys = new_keys(tmp_path)
    monkeypatch.setenv("SMELT_SIGNING_KEY", str(keys.private))
    done = CliRunner().invoke(app, build, catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(
        r"^  Engines of tiny \(1 of 1, .+\): \S+ onnxruntime fp32: build", done.stderr, re.M
    )
    registry = Registry(open_store(str(tmp_path / "home" / "store")), tmp_path / "cache")
    engines, master = registry.engines(), registry.model_version("tiny").master
    assert len(engines) == 1
    assert registry.untrusted(engines, master, TrustRoot(keys.public)) == {}


def test_a_failure_that_was_tried_again_says_so(tmp_path: Path) -> None:
    registry = Registry(open_store("memory:"), tmp_path)
    failed = world.record(world.KEYS[0], BuildOutcome.PROOF_FAILED, reason="it differs")
    report = BuildReport(plans=(), records=(failed,), up_to_date=())
    registry.record_build(failed)
    assert list(again_lines(registry, report)) == []
    registry.record_build(failed)
    (line,) = again_lines(registry, report)
    assert line.startswith(f"{world.KEYS[0].digest()[:12]} failed in attempt 2: ")
