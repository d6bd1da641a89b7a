"""What a child does, run in this process: builds, proofs, results, events."""

import io
import json
import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import pytest
import torch._inductor.codecache  # noqa: F401 - it stays with the cache folder of its first import

from compiler_worker.building.build_child import build_one
from compiler_worker.building.publish import engine_manifest, write_engine_folder
from compiler_worker.children.child import EXIT_FAILURE, Events, limit_threads, run_request
from compiler_worker.children.child_jobs import CHILD_JOBS, ChildJob
from compiler_worker.children.requests import (
    BuildRequest,
    BuildResult,
    ChildFailure,
    ProofRequest,
    Stage,
)
from compiler_worker.proof import proof_child
from compiler_worker.proof.claim import ProofVerdict
from compiler_worker.proof.proof_child import prove_one
from compiler_worker.references.models import Model
from services.contracts.builds.build_key import BuildKey
from services.contracts.errors import (
    BuildError,
    BuildUnavailableError,
    EngineError,
    EngineIncompatibleError,
    ProofError,
    StoreError,
)
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ProofOutcome, Timing
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.engines.base import LoadSpec
from services.engines.device_probe import probe_device
from services.engines.toolchain import installed_version
from tests.conformance.tiny_model import VOCABULARY, master_record, save_master, tiny_model

MASTER = master_record()
RECIPE = Recipe(
    inputs={"ids": InputRecipe(high=VOCABULARY), "mask": InputRecipe(role=InputRole.MASK)}
)
KEY = BuildKey(
    master_digest=MASTER.digest,
    kind=EngineKind.ONNXRUNTIME,
    precision=Precision.FP32,
    buckets=(
        Bucket(
            dims={
                "batch": DimRange(min=1, opt=2, max=2),
                "sequence": DimRange(min=1, opt=4, max=4),
            }
        ),
    ),
    generation=probe_device().generation,
    toolchain={"onnxruntime": installed_version("onnxruntime")},
)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child sets where torch compiles; here that would hold for the tests after it too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unset")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def events_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def build_request(folder: Path, key: BuildKey = KEY) -> BuildRequest:
    workspace = folder / "workspace"
    workspace.mkdir()
    return BuildRequest(
        key=key,
        master=MASTER,
        master_path=save_master(tiny_model(), folder),
        workspace=workspace,
        cache_dir=folder / "cache",
        num_threads=0,
    )


def proof_request(folder: Path, key: BuildKey = KEY) -> ProofRequest:
    built = BuildResult(
        files={}, needs_master=True, findings=(), duration_s=0.0, peak_memory_bytes=0
    )
    return ProofRequest(
        manifest=engine_manifest(key, MASTER, built, 5),
        master=MASTER,
        master_path=save_master(tiny_model(), folder),
        recipe=RECIPE,
        engine_dir=folder,
        samples_path=None,
        device=probe_device(),
        cache_dir=folder / "cache",
        num_threads=0,
        benchmark_s=0.0,
        benchmark_iterations=3,
    )


def test_a_build_tells_its_stage_and_gives_its_result(tmp_path: Path, stream: io.StringIO) -> None:
    request = build_request(tmp_path)
    result = build_one(request, Events(stream))
    assert (result.files, result.needs_master) == ({}, True)
    assert result.peak_memory_bytes > 10 * 2**20
    first, line, last = events_of(stream)
    assert (first["stage"], last["ended_stage"]) == ("build", "build")
    assert last["duration_s"] > 0
    assert "ONNX Runtime" in line["line"]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")


def test_a_build_that_is_refused_says_why(tmp_path: Path, stream: io.StringIO) -> None:
    request = build_request(tmp_path, KEY.model_copy(update={"precision": Precision.BF16}))
    with pytest.raises(BuildUnavailableError, match="bf16"):
        build_one(request, Events(stream))
    assert [event["ended_stage"] for event in events_of(stream)] == [None]


def test_a_proof_compares_times_and_measures(tmp_path: Path, stream: io.StringIO) -> None:
    proof = prove_one(proof_request(tmp_path), Events(stream))
    assert (proof.outcome, proof.reason) == (ProofOutcome.PASSED, "")
    assert proof.device == probe_device()
    assert {check.output for check in proof.checks} == {"hidden", "pooled"}
    (timing,) = proof.timings
    assert timing.sizes == {"batch": 2, "sequence": 4}
    assert timing.throughput == pytest.approx(2 / timing.p50_s)
    assert proof.fallback == "compiled", "of one row, too, where there are two at most"
    assert proof.duration_s > 0
    stages = [event["ended_stage"] for event in events_of(stream) if event["ended_stage"]]
    assert stages == ["prove", "benchmark"]


class Tiring:
    """An engine whose answers are zeros once it was timed."""

    def __init__(self, engine: Model) -> None:
        self._engine, self._is_tired = engine, False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        answer = self._engine.run(inputs)
        return {n: a * 0 for n, a in answer.items()} if self._is_tired else answer

    def benchmark(self, *_: object) -> tuple[Timing, ...]:
        self._is_tired = True
        return ()

    def close(self) -> None:
        """Nothing is held."""


def test_an_engine_that_changes_its_answers_after_many_runs_is_not_proven(
    tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is compared comes before what is timed, and that runs far more often."""
    request = proof_request(tmp_path).model_copy(update={"is_fallback_timed": False})
    engine = Tiring(proof_child.load_engine(request, []))
    monkeypatch.setattr(proof_child, "load_engine", lambda *_: engine)
    monkeypatch.setattr(proof_child, "benchmark", engine.benchmark)
    proof = prove_one(request, Events(stream))
    assert proof.outcome is ProofOutcome.FAILED
    assert "after many runs, output 'hidden'" in proof.reason


def test_each_engine_has_a_seed_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[Any] = []
    judged = ProofVerdict(reason="enough")
    monkeypatch.setattr(proof_child, "drawn_recipe", lambda _: Recipe())
    monkeypatch.setattr(proof_child, "judge", lambda *given: claims.append(given[2]) or judged)
    for key in (KEY, KEY.model_copy(update={"builder_options": {"a": "1"}})):
        prove_one(proof_request(tmp_path, key), Events(io.StringIO()))
    assert len({claim.seed for claim in claims} - {None}) == 2
    assert [claim.recipe for claim in claims] == [Recipe(), Recipe()]  # not the owner's


def test_an_engine_that_does_not_load_fails_its_proof(tmp_path: Path, stream: io.StringIO) -> None:
    request = proof_request(tmp_path)
    request.master_path.write_bytes(b"no onnx")
    proof = prove_one(request, Events(stream))
    assert proof.outcome is ProofOutcome.FAILED
    assert "the engine failed: ONNX Runtime failed to load" in proof.reason
    assert proof.timings == ()


def test_an_engine_for_another_library_gets_no_proof_here(
    tmp_path: Path, stream: io.StringIO
) -> None:
    """It may be proven where that library is: what is missing here says nothing about it."""
    foreign = KEY.model_copy(update={"toolchain": {"onnxruntime": "0.1"}})
    with pytest.raises(EngineIncompatibleError, match=r"onnxruntime 0\.1"):
        prove_one(proof_request(tmp_path, foreign), Events(stream))


def test_a_task_without_samples_fails_with_the_way_out(tmp_path: Path, stream: io.StringIO) -> None:
    recipe = RECIPE.model_validate(
        {**RECIPE.model_dump(), "ranking": {"output": "pooled", "top_k": 3}}
    )
    request = proof_request(tmp_path).model_copy(update={"recipe": recipe})
    proof = prove_one(request, Events(stream))
    assert proof.outcome is ProofOutcome.FAILED
    assert "add the model with --samples FILE.npz, or remove 'ranking'" in proof.reason


def echo(request: ChildFailure, events: Events) -> ChildFailure:
    return request


def refuse(request: ChildFailure, events: Events) -> ChildFailure:
    if request.log_tail:
        raise BuildError(request.message, log_tail=request.log_tail)
    raise ProofError(request.message)


def fail_unforeseen(request: ChildFailure, events: Events) -> ChildFailure:
    raise KeyError(request.message)


class TestRunRequest:
    def run(self, folder: Path, request: ChildFailure, code: Any) -> tuple[int, bytes]:
        job = ChildJob(
            command="task",
            code=f"{__name__}:{code.__name__}",
            request=ChildFailure,
            result=ChildFailure,
            first_stage=Stage.BUILD,
        )
        path = folder / "request.json"
        path.write_bytes(request.canonical_json())
        exit_code = run_request(job, path, Events(io.StringIO()))
        return exit_code, (folder / "result.json").read_bytes()

    def test_a_result_is_a_file(self, tmp_path: Path) -> None:
        result = ChildFailure(error="none", message="a document like any other")
        assert self.run(tmp_path, result, echo) == (0, result.canonical_json())

    @pytest.mark.parametrize(
        ("error", "message", "log_tail"),
        [("BuildError", "no kernel", ("a", "b")), ("ProofError", "no reference", ())],
    )
    def test_a_refusal_is_a_file_too(
        self, tmp_path: Path, error: str, message: str, log_tail: tuple[str, ...]
    ) -> None:
        request = ChildFailure(error=error, message=message, log_tail=log_tail)
        code, data = self.run(tmp_path, request, refuse)
        assert (code, ChildFailure.from_json(data)) == (EXIT_FAILURE, request)

    def test_a_fault_of_ours_keeps_its_words_and_its_place(self, tmp_path: Path) -> None:
        request = ChildFailure(error="", message="hidden")
        code, data = self.run(tmp_path, request, fail_unforeseen)
        found = ChildFailure.from_json(data)
        assert (code, found.error) == (EXIT_FAILURE, "KeyError")
        assert found.message == "KeyError: 'hidden'"
        assert any("fail_unforeseen" in line for line in found.log_tail)


@pytest.mark.parametrize("job", CHILD_JOBS.values(), ids=CHILD_JOBS)
def test_the_code_of_a_job_takes_and_gives_what_its_table_says(job: ChildJob[Any, Any]) -> None:
    types = get_type_hints(job.function)
    assert (types.pop("request"), types.pop("return")) == (job.request, job.result)


def test_a_stage_that_fails_does_not_end(stream: io.StringIO) -> None:
    events = Events(stream)

    def fail() -> None:
        with events.stage(Stage.PROVE):
            raise ProofError("no")

    with pytest.raises(ProofError):
        fail()
    assert [event["stage"] for event in events_of(stream)] == ["prove"]


def test_threads_are_limited_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_threads(0)
    import os

    assert os.environ["OMP_NUM_THREADS"] == "7"
    limit_threads(2)
    assert os.environ["OMP_NUM_THREADS"] == "2"


class WarningLoader:
    """An engine class of a library that warns, and loads nothing where it is told so."""

    fault: ClassVar[Exception | None] = None

    @classmethod
    def load(cls, spec: LoadSpec) -> None:
        logging.getLogger("some.library").warning("profile %d is slow", 3)
        logging.getLogger("some.library").info("chatter")
        warnings.warn("deprecated plan", UserWarning, stacklevel=1)
        if cls.fault:
            raise cls.fault


@pytest.fixture
def warning_loader(monkeypatch: pytest.MonkeyPatch) -> type[WarningLoader]:
    monkeypatch.setattr(proof_child, "engine_class", lambda kind: WarningLoader)
    monkeypatch.setattr(WarningLoader, "fault", None)
    return WarningLoader


def test_what_libraries_warn_of_while_loading_becomes_a_finding(
    tmp_path: Path, warning_loader: type[WarningLoader]
) -> None:
    findings: list[str] = []
    proof_child.load_engine(proof_request(tmp_path), findings)
    logging.getLogger("some.library").warning("afterwards")
    assert findings == ["profile 3 is slow", "deprecated plan"]


def test_a_proof_tells_what_builder_and_loader_warned_of(
    tmp_path: Path, stream: io.StringIO, warning_loader: type[WarningLoader]
) -> None:
    warning_loader.fault = EngineError("damaged")
    request = proof_request(tmp_path)
    warned = {"findings": ("the parser casts INT64 down",)}
    request = request.model_copy(update={"manifest": request.manifest.model_copy(update=warned)})
    proof = prove_one(request, Events(stream))
    assert proof.reason == "the engine failed: damaged"
    assert proof.findings == ("the parser casts INT64 down", "profile 3 is slow")


class TestPublish:
    def test_an_engine_folder_has_the_published_names(self, tmp_path: Path) -> None:
        source = tmp_path / "built.bin"
        source.write_bytes(b"engine")
        folder = write_engine_folder(
            {"engine.plan": source, "cache/k": source}, tmp_path / "engine"
        )
        assert (folder / "engine.plan").read_bytes() == b"engine"
        assert (folder / "cache" / "k").read_bytes() == b"engine"

    def test_a_name_that_leaves_the_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"\.\./out"):
            write_engine_folder({"../out": tmp_path / "x"}, tmp_path / "engine")

    def test_the_larger_peak_counts(self) -> None:
        built = BuildResult(
            files={}, needs_master=True, findings=("slow",), duration_s=1.0, peak_memory_bytes=10
        )
        assert engine_manifest(KEY, MASTER, built, 5).peak_build_memory_bytes == 10
        manifest = engine_manifest(KEY, MASTER, built, 50)
        assert manifest.peak_build_memory_bytes == 50
        assert manifest.findings == ("slow",)
        assert manifest.inputs == MASTER.inputs
