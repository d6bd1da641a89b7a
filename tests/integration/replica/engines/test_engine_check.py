"""Engines of foreign code are loaded in a child first, and a passed check is remembered."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from services.contracts.errors import CheckUnfinishedError, EngineError
from services.contracts.hardware.kinds import EngineKind
from services.engines.base import LoadSpec
from services.engines.caches.passed_checks import PassedChecks
from services.replica.engine import check_child
from services.replica.engine.check_child import check_in_child, check_limit_s
from services.replica.engine.checker import EngineChecker, needs_check
from tests.integration.replica.published import Shelf, load_spec


def test_the_child_check_passes_a_good_engine_and_explains_a_bad_one(
    shelf: Shelf, tmp_path: Path
) -> None:
    model = shelf.publish_model()
    check_in_child(load_spec(shelf, model), model.recipe.inputs)
    (tmp_path / "typed.onnx").write_bytes(b"no onnx")
    bad = load_spec(shelf, model, tmp_path)
    with pytest.raises(EngineError, match=r"ended with 1: .*ONNX Runtime failed to load"):
        check_in_child(bad, model.recipe.inputs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SEGV", EngineError), ("ABRT", EngineError), ("KILL", CheckUnfinishedError)],
)
def test_a_child_that_dies_is_an_engine_error_and_one_that_is_killed_has_no_verdict(
    shelf: Shelf,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[EngineError],
) -> None:
    model = shelf.publish_model()
    dying = tmp_path / "dying"
    dying.write_text(f"#!/bin/sh\nkill -{name} $$\n")
    dying.chmod(0o700)
    spec = load_spec(shelf, model)
    monkeypatch.setattr(sys, "executable", os.fspath(dying))
    with pytest.raises(EngineError, match=f"ended with -{signal.Signals[f'SIG{name}']}") as caught:
        check_in_child(spec, model.recipe.inputs)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("proof_s", "limit_s"), [(0.0, 300.0), (7.0, 120.0), (100.0, 200.0), (1000.0, 300.0)]
)
def test_an_engine_that_hangs_has_the_host_as_long_as_its_proof_suggests(
    proof_s: float, limit_s: float
) -> None:
    assert check_limit_s(proof_s) == limit_s


def test_a_child_that_hangs_is_ended(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o700)
    foreign = of_kind(load_spec(shelf, shelf.publish_model()), EngineKind.INDUCTOR)
    monkeypatch.setattr(sys, "executable", os.fspath(hanging))
    monkeypatch.setattr(check_child, "MIN_LIMIT_S", 0.1)
    with pytest.raises(CheckUnfinishedError, match=r"did not end within 0\.2 s"):
        EngineChecker(tmp_path / "checked").check(foreign, {}, 0.1)


def of_kind(spec: LoadSpec, kind: EngineKind, **key: str) -> LoadSpec:
    changed = spec.manifest.key.model_copy(update={"kind": kind, **key})
    return replace(spec, manifest=spec.manifest.model_copy(update={"key": changed}))


def test_only_foreign_code_and_devices_need_the_check(shelf: Shelf) -> None:
    spec = load_spec(shelf, shelf.publish_model())
    gpu = replace(spec, device=spec.device.model_copy(update={"generation": "cuda-sm90"}))
    assert not needs_check(spec)
    assert not needs_check(of_kind(spec, EngineKind.OPENVINO))
    assert needs_check(of_kind(spec, EngineKind.INDUCTOR))
    assert needs_check(of_kind(spec, EngineKind.TENSORRT))
    assert needs_check(gpu)


def test_a_passed_check_is_remembered_for_that_device_and_a_failed_one_is_not(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This kind's own loader refuses a manifest without files, so the child fails for sure.
    failing = of_kind(load_spec(shelf, shelf.publish_model()), EngineKind.INDUCTOR)
    checker = EngineChecker(tmp_path / "checked")
    for _ in range(2):
        with pytest.raises(EngineError, match="ended with 1"):
            checker.check(failing, {})
    runs = tmp_path / "runs"
    passing = tmp_path / "passing"
    passing.write_text(f"#!/bin/sh\necho run >> {runs}\n")
    passing.chmod(0o700)
    monkeypatch.setattr(sys, "executable", os.fspath(passing))
    for _ in range(2):
        checker.check(failing, {})
    assert runs.read_text() == "run\n"
    other_driver = failing.device.model_copy(update={"driver": "1.2"})
    checker.check(replace(failing, device=other_driver), {})
    checker.check(of_kind(failing, EngineKind.INDUCTOR, calibration_digest="c"), {})
    assert runs.read_text() == "run\n" * 3


def test_one_process_of_a_host_checks_at_a_time_and_for_all(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = of_kind(load_spec(shelf, shelf.publish_model()), EngineKind.INDUCTOR)
    others = [of_kind(foreign, EngineKind.INDUCTOR, calibration_digest=each) for each in "cd"]
    runs = tmp_path / "runs"
    alone = tmp_path / "alone"
    # Fails where another one is there.
    alone.write_text(f"#!/bin/sh -e\nmkdir {runs}.now\necho >> {runs}\nrmdir {runs}.now\n")
    alone.chmod(0o700)
    monkeypatch.setattr(sys, "executable", os.fspath(alone))
    with ThreadPoolExecutor() as pool:
        checks = [
            pool.submit(EngineChecker(tmp_path / "checked").check, spec, {})
            for spec in [foreign, *others] * 2
        ]
    for check in checks:
        check.result()
    assert runs.read_text() == "\n" * 3


def test_a_mark_that_the_disk_does_not_take_costs_a_check_and_no_engine(
    shelf: Shelf, tmp_path: Path
) -> None:
    spec = load_spec(shelf, shelf.publish_model())
    (tmp_path / "full").touch()
    passed = PassedChecks(tmp_path / "full" / "checked")
    with passed.turn():
        pass
    passed.add(spec.manifest, spec.device, 0)
    assert not passed.has(spec.manifest, spec.device, 0)
