"""From how a child ended to what is recorded of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from compiler_worker.building.attempt import Attempt
from compiler_worker.building.publish import proof_not_run
from compiler_worker.children.process import ChildOutcome
from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.host_memory import Allowance
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import (
    BuildError,
    EngineIncompatibleError,
    InvalidModelError,
    ProofError,
)
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import Proof, ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from tests.documents import small_key

KEY = small_key(kind=EngineKind.TENSORRT, precision=Precision.FP16, generation="cuda-sm89")
DEVICE = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
PASSED = Proof(outcome=ProofOutcome.PASSED, duration_s=4.0, created_at="")


@pytest.fixture
def worker(tmp_path: Path) -> WorkerContext:
    store = open_store(str(tmp_path / "store"))
    return WorkerContext(
        registry=Registry(store, tmp_path / "cache"),
        settings=CompilerSettings(cache_dir=tmp_path / "cache", build_time_limit_s=7),
    )


class TestAttempt:
    def test_a_result_is_handed_on_and_its_seconds_are_kept(self, worker: WorkerContext) -> None:
        attempt = Attempt(KEY, worker)
        with attempt.stage(Stage.OPEN):
            pass
        ended = ChildOutcome(stage=Stage.BUILD, result=PASSED, durations_s={"build": 2.0})
        attempt.follow(ended)
        record = attempt.record(BuildOutcome.BUILT)
        assert record.stage_durations_s.keys() == {"open", "build"}
        assert (record.stage, record.log_tail) == ("build", ())

    def test_a_crash_becomes_a_record_with_its_last_lines(self, worker: WorkerContext) -> None:
        attempt = Attempt(KEY, worker)
        ended = ChildOutcome(
            stage=Stage.PROVE, failure="the process was ended by SIGSEGV", log_tail=("a", "b")
        )
        attempt.follow(ended)
        record = attempt.record(BuildOutcome.FAILED, reason="x")
        assert (record.stage, record.log_tail) == ("prove", ("a", "b"))

    def test_a_stage_that_failed_has_the_seconds_that_it_took(self, worker: WorkerContext) -> None:
        clock = iter((100.0, 1930.0))
        attempt = Attempt(KEY, worker, clock=lambda: next(clock))
        attempt.follow(
            ChildOutcome(stage=Stage.PROVE, failure="no result", durations_s={"build": 30.0})
        )
        record = attempt.record(BuildOutcome.FAILED, reason="no result within 1800 s")
        assert record.stage_durations_s == {"build": 30.0, "prove": 1800.0}

    def test_what_build_and_proof_waited_is_summed(self, worker: WorkerContext) -> None:
        attempt = Attempt(KEY, worker)
        attempt.follow(ChildOutcome(stage=Stage.BUILD, durations_s={"wait": 5.0, "build": 30.0}))
        attempt.follow(ChildOutcome(stage=Stage.PROVE, durations_s={"prove": 2.0, "wait": 1.0}))
        record = attempt.record(BuildOutcome.BUILT)
        assert record.stage_durations_s == {"wait": 6.0, "build": 30.0, "prove": 2.0}

    def test_progress_is_told_with_its_key(self, worker: WorkerContext) -> None:
        told: list[tuple[BuildKey, ChildEvent]] = []
        watched = WorkerContext(
            registry=worker.registry,
            settings=worker.settings,
            on_progress=lambda key, event: told.append((key, event)),
        )
        with Attempt(KEY, watched).stage(Stage.PUBLISH):
            pass
        assert [key for key, _ in told] == [KEY, KEY]
        assert [event.stage or event.ended_stage for _, event in told] == [Stage.PUBLISH] * 2


class TestRequire:
    def test_a_result(self) -> None:
        ended = ChildOutcome(stage=Stage.BENCHMARK, result=PASSED)
        assert ended.require(ProofError) == PASSED

    @pytest.mark.parametrize(
        ("failure", "error"),
        [
            ("no reference", "ProofError"),
            ("the process was ended by SIGKILL", ""),
            ("no result within 1800 s", ""),
        ],
    )
    def test_without_one_the_error_of_the_caller_is_raised(self, failure: str, error: str) -> None:
        ended = ChildOutcome[Proof](stage=Stage.PROVE, failure=failure, error=error)
        with pytest.raises(ProofError, match=failure):
            ended.require(ProofError, EngineIncompatibleError)

    @pytest.mark.parametrize("error", ["InvalidModelError", "UnsupportedGraphError"])
    def test_errors_that_are_the_childs_own_stay_what_they_are(self, error: str) -> None:
        ended = ChildOutcome[Proof](stage=Stage.PROFILE, failure="Foo-13: no such op", error=error)
        with pytest.raises(InvalidModelError, match="^Foo-13"):
            ended.require(BuildError, InvalidModelError)


class TestWorkerContext:
    def test_limits_name_their_settings(self, worker: WorkerContext) -> None:
        assert worker.build_limits.time_s == 7
        assert worker.build_limits.time_setting == "SMELT_BUILD_TIME_LIMIT_S"
        assert worker.proof_limits.time_setting == "SMELT_PROOF_TIME_LIMIT_S"
        assert worker.proof_limits.memory_bytes is None
        settings = worker.settings.model_copy(update={"memory_limit_gib": 3.5})
        limits = replace(worker, settings=settings).proof_limits
        assert limits.allowance(0) == Allowance(num_bytes=int(3.5 * 2**30))

    def test_builds_of_a_host_are_counted_by_their_work_folders(
        self, worker: WorkerContext
    ) -> None:
        other = replace(worker)
        with worker.work_folder(KEY), other.work_folder(KEY):
            assert worker.build_limits.num_builds() == 2
        assert worker.build_limits.num_builds() == 0

    def test_a_work_folder_is_absolute_and_goes_away(self, worker: WorkerContext) -> None:
        with worker.work_folder(KEY) as folder:
            assert folder.is_absolute()
            (folder / "large").write_bytes(b"x")
        assert not folder.exists()


def test_an_engine_for_elsewhere_says_where_and_how_it_is_proven() -> None:
    proof = proof_not_run(KEY, DEVICE)
    assert proof.outcome is ProofOutcome.NOT_RUN
    assert "needs a cuda-sm89 device, this machine has cpu-x86_64-v3" in proof.reason
    assert f"python -m compiler_worker prove {KEY.digest()[:12]}" in proof.reason
