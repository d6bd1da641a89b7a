"""Plans and single keys, through the compiler's own command line and real children."""

import json
from pathlib import Path

import pytest

from compiler_worker.__main__ import main
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from tests.integration.compiler.test_command import QUICK, logs_as_before, where

pytestmark = pytest.mark.usefixtures("forked_children")

__all__ = ["logs_as_before", "where"]

LOWER = "cpu-x86_64-v3"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, object]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_plan_is_kept_and_its_keys_are_built_by_name(
    where: list[str],
    version: ModelVersion,
    worker: WorkerContext,
    capsys: pytest.CaptureFixture[str],
    settings: CompilerSettings,
) -> None:
    simulated = ["--device-generation", LOWER, *where]
    code, printed = run(capsys, "plan", "tiny", "--version", "1", *simulated)
    assert code == 0
    (plan,) = worker.registry.build_plans("tiny", 1)
    assert isinstance(printed, list)
    assert [p["digest"] for p in printed[0]["planned"]] == [p.digest for p in plan.planned]
    assert plan.node_class.generation == LOWER
    assert plan.facts is not None
    assert plan.node_class == NodeClass.from_facts(plan.facts)
    kinds = {planned.key.kind.value: planned for planned in plan.planned}
    # JAX is not everywhere where the others are.
    assert {skipped.kind for skipped in plan.skipped} == {"tensorrt", "xla"} - kinds.keys()

    wanted = kinds["onnxruntime"].digest
    build = ["build", "tiny", "--generation", LOWER, "--key", wanted, *QUICK, *simulated]
    assert main(build) == 0
    (engine,) = worker.registry.engines()
    assert engine.digest == wanted
    assert engine.proof.device is not None
    assert engine.proof.device.generation == LOWER
    assert main(build) == 0
    (again,) = worker.registry.engines()
    assert again.proof.outcome is ProofOutcome.PASSED
    assert again.proof.created_at > engine.proof.created_at, "asked by name, it is proven again"


def test_what_failed_is_left_to_those_who_name_it(
    where: list[str],
    version: ModelVersion,
    worker: WorkerContext,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(capsys, "plan", "tiny", *where)
    (plan,) = worker.registry.build_plans("tiny", 1)
    for planned in plan.planned:
        failed = BuildRecord(
            key=planned.key, outcome=BuildOutcome.FAILED, stage="build", reason="x", started_at=""
        )
        worker.registry.record_build(failed)
    build = ["build", "tiny", "--untried", "--generation", plan.node_class.generation]
    code, report = run(capsys, *build, *QUICK, *where)
    assert code == 0
    assert isinstance(report, dict)
    assert report["records"] == []
    reasons = [s["reason"] for s in report["skipped"]]
    assert reasons.count("failed when it was tried last: x") == len(plan.planned)


def test_a_key_that_is_not_planned_is_refused(
    where: list[str], version: ModelVersion, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["build", "tiny", "--key", "0" * 64, *where]) == 1
    assert "key 000000000000 is not planned on this machine" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["build", "tiny", "--key", "0123", *where])
