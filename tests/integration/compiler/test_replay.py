"""The worst sample of a failed proof: kept, found again, and run again by one command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.__main__ import main
from compiler_worker.building.build_report import report_lines
from compiler_worker.building.pipeline import BuildReport, build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.proof.replay import replay, replay_lines
from compiler_worker.proof.worst_sample import read_sample_arrays
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import NotFoundError
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Tolerance

pytestmark = pytest.mark.usefixtures("forked_children")

ONLY_ORT = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
STRICT = Tolerance(rel_l2=1e-12, max_abs=1e-12, cosine_distance=1e-12)


@pytest.fixture
def strict(worker: WorkerContext, version: ModelVersion) -> ModelVersion:
    """A version with a bound that no floating computation keeps: it stands for a wrong engine."""
    recipe = version.recipe.model_copy(update={"tolerances": {Precision.FP32: STRICT}})
    return worker.registry.add_model_version(
        name=version.name,
        master=version.master,
        recipe=recipe,
        source=version.source,
        source_fingerprint="1",
        samples=worker.registry.materialise_samples(version.samples) if version.samples else None,
    )


@pytest.fixture
def failure(worker: WorkerContext, strict: ModelVersion) -> BuildRecord:
    (record,) = build_model(strict, ONLY_ORT, worker).records
    assert record.outcome is BuildOutcome.PROOF_FAILED
    return record


def test_the_worst_sample_is_kept_and_fails_again(
    worker: WorkerContext,
    failure: BuildRecord,
    settings: CompilerSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failure.proof is not None
    worst = failure.proof.worst
    assert worst is not None
    assert worst.allowed == {"hidden": STRICT, "pooled": STRICT}
    # The farthest of all that was checked, whatever stands first in the record.
    farthest = max(check.rel_l2 for check in worst.checks)
    assert farthest >= 0.1 * max(check.rel_l2 for check in failure.proof.checks)
    assert worst.arrays is not None
    arrays = worker.registry.materialise_samples(worst.arrays)
    inputs, wanted, found = (
        read_sample_arrays(arrays, role) for role in ("input", "wanted", "found")
    )
    assert set(inputs) == {"ids", "mask"}
    assert set(wanted) == set(found) == {"hidden", "pooled"}
    assert inputs["ids"].shape == (worst.sizes["batch"], worst.sizes["sequence"])
    assert wanted["pooled"].dtype == np.float64

    key = failure.key.digest()
    report = BuildReport(plans=(), records=(failure,), up_to_date=())
    (line,) = report_lines(report, settings.store_url)
    command = f"-m compiler_worker replay {key[:12]} --store-url {settings.store_url}"
    assert line.endswith(f"{sys.executable} {command}")
    options = ["--store-url", settings.store_url, "--cache-dir", str(settings.cache_dir)]
    assert main(["replay", key[:12], *options, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["key"] == key
    assert (document["is_success"], document["now"]["is_drawn_again"]) == (False, False)
    then, now = document["failed"]["checks"], document["now"]["checks"]
    assert [check["output"] for check in now] == [check["output"] for check in then]
    assert now[0]["rel_l2"] == pytest.approx(then[0]["rel_l2"], rel=0.5)


def test_without_its_arrays_the_sample_is_drawn_again(
    worker: WorkerContext, strict: ModelVersion, failure: BuildRecord, tmp_path: Path
) -> None:
    """What was too large to keep is the same sample all the same."""
    assert failure.proof is not None
    assert failure.proof.worst is not None
    bare = failure.proof.worst.model_copy(update={"arrays": None})
    proof = failure.proof.model_copy(update={"worst": bare})
    worker.registry.record_build(failure.model_copy(update={"proof": proof}))
    done = replay(failure.key.digest(), worker)
    assert done.result.is_drawn_again
    for now, then in zip(done.result.checks, bare.checks, strict=True):
        assert now.rel_l2 == pytest.approx(then.rel_l2, rel=0.5)
    lines = replay_lines(done)
    assert "drawn again" in lines[0]
    assert any(line.startswith("hidden rel_l2: ") and "then" in line for line in lines)
    assert lines[-1] == "it fails here too"


def test_only_a_failure_can_be_replayed(worker: WorkerContext, version: ModelVersion) -> None:
    (record,) = build_model(version, ONLY_ORT, worker).records
    assert record.outcome is BuildOutcome.PROVEN
    with pytest.raises(NotFoundError, match="no proof of it failed at a sample"):
        replay(record.key.digest()[:8], worker)
    with pytest.raises(NotFoundError, match="key 'ffff' not found among 1 keys"):
        replay("ffff", worker)
