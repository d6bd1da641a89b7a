"""A compiler with a key signs what it publishes; what was published before can be signed."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.__main__ import main
from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.proof.proof_job import prove_published
from compiler_worker.worker_context import WorkerContext
from services.contracts.hardware.kinds import EngineKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.security.signing import Signer, TrustRoot
from tests.signing_keys import KeyFiles, new_keys

pytestmark = pytest.mark.usefixtures("forked_children")

WANTED = Wanted(kinds=(EngineKind.ONNXRUNTIME,))


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return new_keys(tmp_path)


def untrusted(worker: WorkerContext, version: ModelVersion, keys: KeyFiles) -> dict[str, str]:
    engines = worker.registry.engines()
    assert engines
    return worker.registry.untrusted(engines, version.master, TrustRoot(keys.public))


def test_a_build_and_a_newer_proof_are_signed(
    worker: WorkerContext, version: ModelVersion, keys: KeyFiles
) -> None:
    signing = replace(worker, signer=Signer(keys.private))
    assert build_model(version, WANTED, signing).is_success
    assert untrusted(worker, version, keys) == {}
    (engine,) = worker.registry.engines()
    newer = prove_published(engine.digest, signing)
    assert newer.proof != engine.proof
    assert untrusted(worker, version, keys) == {}


def test_the_command_signs_what_was_published_without_a_key(
    worker: WorkerContext,
    version: ModelVersion,
    keys: KeyFiles,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert build_model(version, WANTED, worker).is_success
    faults = untrusted(worker, version, keys)
    sign = ["sign", "--json", "--store-url", worker.settings.store_url]
    assert main(sign) == 1
    assert "set SMELT_SIGNING_KEY" in capsys.readouterr().err
    monkeypatch.setenv("SMELT_SIGNING_KEY", str(keys.private))
    for fault in faults.values():
        # As a shell takes it, with nothing added.
        shown = shlex.split(fault.partition("sign it by: ")[2])
        assert shown[:3] == [sys.executable, "-m", "compiler_worker"]
        assert main(shown[3:]) == 0
    capsys.readouterr()
    assert untrusted(worker, version, keys) == {}
    for _ in range(2):  # again is no fault
        assert main(sign) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["keyid"] == Signer(keys.private).keyid
        assert told["signed"] == [engine.digest for engine in worker.registry.engines()]
    assert untrusted(worker, version, keys) == {}
