"""Builds through real throw-away children into a real local store."""

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from compiler_worker.building.pipeline import attempt_build, build_model
from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.devices import main_device
from compiler_worker.inputs.sample_sizes import edge_sizes
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.proof.proof_job import prove_published
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import EngineIncompatibleError
from services.contracts.hardware.facts import Generation, Platform
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion, ProofOutcome, PublishedEngine
from services.contracts.model.recipe import Tolerance
from services.contracts.selection.selection import select
from services.engines.caches.passed_checks import CHECKED, PassedChecks
from services.engines.device.device_probe import probe_device
from tests.integration.compiler.conftest import hurried
from tests.quick_worker import wanted_keys

pytestmark = pytest.mark.usefixtures("forked_children")

CPU_KINDS = Wanted(kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))
RTX_FOR_ADA = Wanted(kinds=(EngineKind.TENSORRT,), generations=(Generation.parse("cuda-sm89"),))


def by_kind(worker: WorkerContext) -> dict[EngineKind, PublishedEngine]:
    return {engine.manifest.key.kind: engine for engine in worker.registry.engines()}


def test_engines_of_this_machine_are_proven_and_published(
    worker: WorkerContext, version: ModelVersion
) -> None:
    report = build_model(version, CPU_KINDS, worker)

    assert [record.outcome for record in report.records] == [BuildOutcome.PROVEN] * 2
    for record in report.records:
        assert list(record.stage_durations_s) == [
            "open",
            "build",
            "prove",
            "benchmark",
            "publish",
        ]
        assert (record.stage, record.reason) == (Stage.PUBLISH, "")
        (kept,) = worker.registry.build_records(record.key.digest())
        assert kept == record
    engines = by_kind(worker)
    assert set(engines) == {EngineKind.ONNXRUNTIME, EngineKind.OPENVINO}
    for engine in engines.values():
        proof = engine.proof
        assert proof.outcome is ProofOutcome.PASSED
        assert proof.device == main_device(worker.devices)
        (bucket,) = engine.manifest.buckets
        sizes = [check.sizes for check in proof.checks]
        assert all(sizes.count(edge) == 2 for edge in edge_sizes(bucket)), "two outputs"
        assert {check.output for check in proof.columns} == {"hidden", "pooled"}
        assert all(check.refused and not check.blind for check in proof.power)
        assert [task.is_passed for task in proof.tasks] == [True]
        assert [timing.sizes["batch"] for timing in proof.timings] == [2, 4]
        assert all(timing.p95_s >= timing.p50_s > 0 for timing in proof.timings)
        assert proof.peak_memory_bytes > 0
        assert engine.manifest.peak_build_memory_bytes > 10 * 2**20
    assert select(engines.values(), main_device(worker.devices)).engine is not None


def test_a_second_build_finds_everything_up_to_date(
    worker: WorkerContext, version: ModelVersion
) -> None:
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
    first = build_model(version, wanted, worker)
    second = build_model(version, wanted, worker)
    assert len(first.records) == 1
    assert second.records == ()
    assert [engine.digest for engine in second.up_to_date] == [first.records[0].key.digest()]


def test_an_engine_of_another_generation_is_published_unproven(
    worker: WorkerContext, version: ModelVersion
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
    (record,) = build_model(version, RTX_FOR_ADA, worker).records
    assert (record.outcome, record.reason) == (BuildOutcome.BUILT, "")
    engine = by_kind(worker)[EngineKind.TENSORRT]
    assert engine.proof.outcome is ProofOutcome.NOT_RUN
    assert "needs a cuda-sm89 device" in engine.proof.reason
    assert engine.manifest.num_bytes > 0
    selection = select([engine], main_device(worker.devices))
    assert selection.engine is None
    with pytest.raises(EngineIncompatibleError, match="prove it on a cuda-sm89 device"):
        prove_published(engine.digest, worker)


def test_what_cannot_be_built_here_is_skipped_with_its_reason(
    worker: WorkerContext, version: ModelVersion
) -> None:
    wanted = Wanted(
        kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO),
        generations=(Generation.parse("cuda-sm90"),),
    )
    report = build_model(version, wanted, worker)
    assert report.records == ()
    assert [skipped.kind for skipped in report.plans[0].skipped] == list(wanted.kinds)
    assert all(skipped.reason for skipped in report.plans[0].skipped)


def test_an_engine_that_is_not_equal_is_not_published(
    worker: WorkerContext, version: ModelVersion
) -> None:
    """A bound that no floating computation keeps stands for an engine that is wrong."""
    strict = Tolerance(rel_l2=1e-12, max_abs=1e-12, cosine_distance=1e-12)
    recipe = version.recipe.model_copy(update={"tolerances": {Precision.FP32: strict}})
    version = version.model_copy(update={"recipe": recipe})
    (record,) = build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker).records
    assert record.outcome is BuildOutcome.PROOF_FAILED
    assert "output 'hidden', bucket batch4-sequence16" in record.reason
    assert "found, 1.00e-12 allowed" in record.reason
    assert record.proof is not None
    assert record.proof.timings == ()
    assert worker.registry.engines() == []
    assert worker.registry.build_records(record.key.digest()) == [record]


def test_an_engine_that_came_here_unproven_is_proven_by_the_next_build(
    worker: WorkerContext, version: ModelVersion
) -> None:
    """A builder without the device publishes; a worker on the device proves."""
    here = main_device(worker.devices)
    foreign = here.model_copy(update={"generation": "cpu-aarch64-generic"})
    builder = replace(worker, devices={Platform.CPU: foreign})
    wanted = Wanted(
        kinds=(EngineKind.ONNXRUNTIME,), generations=(Generation.parse(here.generation),)
    )
    (record,) = build_model(version, wanted, builder).records
    assert record.outcome is BuildOutcome.BUILT
    # A proof that is killed says nothing of the engine: it is tried again as any failure is.
    with hurried(worker, proof_time_limit_s=0.1) as hasty:
        (killed,) = build_model(version, wanted, hasty).records
    assert killed.outcome is BuildOutcome.FAILED
    assert killed.stage in (Stage.PROVE, Stage.BENCHMARK)  # as far as a machine gets by then
    assert "no result within 0.1 s" in killed.reason
    assert worker.registry.build_records(record.key.digest()) == [record, killed]
    assert worker.registry.engine(record.key.digest()).proof.outcome is ProofOutcome.NOT_RUN
    report = build_model(version, wanted, worker)
    assert report.records == ()
    (engine,) = report.up_to_date
    assert engine.proof.outcome is ProofOutcome.PASSED
    assert worker.registry.engines() == [engine]


def test_an_engine_that_was_proven_on_a_higher_class_is_proven_here_too(
    worker: WorkerContext, version: ModelVersion
) -> None:
    """Selection takes no proof of a processor that may compute in another way."""
    facts = main_device(worker.devices)
    higher, here = (
        replace(worker, devices={Platform.CPU: facts.model_copy(update={"generation": name})})
        for name in ("cpu-x86_64-amx", "cpu-x86_64-v3")
    )
    portable = Generation.parse("cpu-x86_64-v3")
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME,), generations=(portable,))
    build_model(version, wanted, higher)
    (before,) = worker.registry.engines()
    assert select([before], main_device(here.devices)).engine is None
    (after,) = build_model(version, wanted, here).up_to_date
    assert select([after], main_device(here.devices), version=version).engine == after
    # What was proven on the lower class holds on the higher one: no proof goes back and forth.
    assert build_model(version, wanted, higher).up_to_date == (after,)


def test_a_proof_that_cannot_be_made_stops_no_other_build(
    worker: WorkerContext, version: ModelVersion, tmp_path: Path
) -> None:
    here = main_device(worker.devices)
    foreign = here.model_copy(update={"generation": "cpu-aarch64-generic"})
    generation = Generation.parse(here.generation)
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME,), generations=(generation,))
    build_model(version, wanted, replace(worker, devices={Platform.CPU: foreign}))
    for ref in version.master.files.values():
        for place in tmp_path.rglob(f"{ref.sha256}*"):
            place.unlink()
    shutil.rmtree(worker.settings.cache_dir)
    both = replace(wanted, kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))
    report = build_model(version, both, worker)
    records = {record.key.kind: record for record in report.records}
    assert set(records) == set(both.kinds)
    assert not report.is_success
    unproven = records[EngineKind.ONNXRUNTIME]
    assert unproven.stage == Stage.PROVE
    assert "does not exist in store" in unproven.reason


def test_another_recipe_of_one_master_gets_engines_of_its_own(
    worker: WorkerContext, version: ModelVersion
) -> None:
    """An engine that was proven by a lax bound must not serve those who asked for more."""
    lax = Tolerance(rel_l2=1.0, max_abs=1.0, cosine_distance=1.0)
    recipe = version.recipe.model_copy(update={"tolerances": {Precision.FP32: lax}})
    lax_version = version.model_copy(update={"recipe": recipe})
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
    build_model(lax_version, wanted, worker)
    (engine,) = worker.registry.engines()
    device = main_device(worker.devices)
    assert select([engine], device, version=lax_version).engine == engine
    assert select([engine], device, version=version).engine is None
    assert len(build_model(version, wanted, worker).records) == 1
    assert len(worker.registry.engines()) == 2


def test_a_worker_that_comes_second_overwrites_nothing(
    worker: WorkerContext, version: ModelVersion
) -> None:
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME,))
    (first,) = build_model(version, wanted, worker).records
    (published,) = worker.registry.engines()
    second = attempt_build(version, first.key, worker)
    assert second.outcome is BuildOutcome.PROVEN
    assert "another worker published this key first" in second.reason
    assert worker.registry.engines() == [published]
    assert len(worker.registry.build_records(first.key.digest())) == 2


class KillsTheChild:
    """Ends the compiler's child with a signal, as soon as it says that it entered a stage."""

    def __init__(self, stage: Stage, signum: signal.Signals) -> None:
        self._stage = stage
        self._signum = signum
        self.num_kills = 0

    def __call__(self, key: BuildKey, event: ChildEvent) -> None:
        if event.stage is self._stage:
            for child in psutil.Process().children():
                if "compiler_worker" in child.cmdline():
                    os.kill(child.pid, self._signum)
                    self.num_kills += 1


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_that_dies_while_it_builds_leaves_a_record(
    worker: WorkerContext, version: ModelVersion, signum: signal.Signals
) -> None:
    killer = KillsTheChild(Stage.BUILD, signum)
    # This kind compiles for many seconds: the child cannot be done before it is killed.
    wanted = Wanted(kinds=(EngineKind.INDUCTOR,))
    (record,) = build_model(version, wanted, replace(worker, on_progress=killer)).records
    assert killer.num_kills == 1
    assert record.outcome is BuildOutcome.FAILED
    assert record.reason.startswith(f"the process was ended by {signum.name} in stage 'build'")
    assert ("memory" in record.reason) == (signum is signal.SIGKILL)
    assert worker.registry.engines() == []
    assert worker.registry.build_records(record.key.digest()) == [record]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("not as meant"), "internal worker error: TypeError('not as meant')"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/cache/x"),
            "No space left on device: /cache/x; free disk space there",
        ),
    ],
)
def test_a_fault_of_the_worker_itself_is_recorded_and_stops_no_other_key(
    worker: WorkerContext,
    version: ModelVersion,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
) -> None:
    def faulty(*_: object) -> None:
        raise error

    monkeypatch.setattr("compiler_worker.building.pipeline.prove", faulty)
    wanted = Wanted(kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))
    records = build_model(version, wanted, worker).records
    assert [record.outcome for record in records] == [BuildOutcome.FAILED] * 2
    assert {record.reason for record in records} == {reason}
    # A full disk is no fault of the engine's.
    assert {record.is_counted for record in records} == {isinstance(error, TypeError)}


def test_a_build_that_takes_too_long_is_ended(worker: WorkerContext, version: ModelVersion) -> None:
    with hurried(worker, build_time_limit_s=0.5) as hasty:
        (record,) = build_model(version, Wanted(kinds=(EngineKind.INDUCTOR,)), hasty).records
    assert record.outcome is BuildOutcome.FAILED
    assert "no result within 0.5 s, in stage 'build'" in record.reason
    assert "SMELT_BUILD_TIME_LIMIT_S" in record.reason


def test_a_builder_that_refuses_is_recorded_with_its_words(
    worker: WorkerContext, version: ModelVersion
) -> None:
    (key,) = wanted_keys(version, Wanted(kinds=(EngineKind.OPENVINO,)), worker)
    impossible = key.model_copy(update={"precision": Precision.FP16})
    record = attempt_build(version, impossible, worker)
    assert record.outcome is BuildOutcome.FAILED
    assert "fp16" in record.reason
    assert record.stage == Stage.BUILD


def test_a_replica_of_this_host_need_not_check_what_was_proven_here(
    worker: WorkerContext, version: ModelVersion
) -> None:
    build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker)
    (engine,) = worker.registry.engines()
    passed = PassedChecks(worker.settings.cache_dir / CHECKED)
    # As a replica finds its device, and the manifest in the store.
    device = probe_device()
    num_threads = worker.settings.num_threads
    assert passed.has(engine.manifest, device, num_threads)
    assert not passed.has(engine.manifest, device, num_threads + 1)
    other_driver = device.model_copy(update={"driver": "1.2"})
    assert not passed.has(engine.manifest, other_driver, num_threads)
    other = engine.manifest.model_copy(update={"created_at": "at another time"})
    assert not passed.has(other, device, num_threads)


def test_a_published_engine_is_proven_again_as_a_new_revision(
    worker: WorkerContext, version: ModelVersion
) -> None:
    build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker)
    (before,) = worker.registry.engines()
    after = prove_published(before.digest[:16], worker)
    assert after.proof.outcome is ProofOutcome.PASSED
    assert after.proof.created_at > before.proof.created_at
    assert worker.registry.engine(before.digest) == after
