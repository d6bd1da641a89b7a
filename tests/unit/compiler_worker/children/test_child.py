"""What a child does, run in this process: builds, results, events."""

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from compiler_worker.building.build_child import build_one
from compiler_worker.children.child import EXIT_FAILURE, Events, limit_threads, run_request
from compiler_worker.children.child_jobs import CHILD_JOBS, ChildJob
from compiler_worker.children.requests import (
    ChildFailure,
    Stage,
)
from compiler_worker.timing.host_turns import alone
from services.contracts.errors import (
    BuildError,
    BuildUnavailableError,
    ProofError,
)
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.children.child_requests import KEY, build_request, events_of


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


def test_what_a_build_waits_for_its_host_is_no_time_of_the_builder(
    tmp_path: Path, stream: io.StringIO
) -> None:
    request = build_request(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        with alone(request.cache_dir, Events(io.StringIO())):
            building = threads.submit(build_one, request, Events(stream))
            while not events_of(stream):
                assert not building.done()
        result = building.result()
    waited, built = (event for event in events_of(stream) if event["ended_stage"])
    assert (waited["ended_stage"], built["ended_stage"]) == ("wait", "build")
    assert result.duration_s <= built["duration_s"]


def test_a_build_that_is_refused_says_why(tmp_path: Path, stream: io.StringIO) -> None:
    request = build_request(tmp_path, KEY.model_copy(update={"precision": Precision.BF16}))
    with pytest.raises(BuildUnavailableError, match="bf16"):
        build_one(request, Events(stream))
    assert [event["ended_stage"] for event in events_of(stream)] == [None]


def echo(request: ChildFailure, events: Events) -> ChildFailure:
    return request


def refuse(request: ChildFailure, events: Events) -> ChildFailure:
    if request.log_tail:
        raise BuildError(request.message, log_tail=request.log_tail)
    raise ProofError(request.message)


def fail_unforeseen(request: ChildFailure, events: Events) -> ChildFailure:
    raise KeyError(request.message)


def fill_disk(request: ChildFailure, events: Events) -> ChildFailure:
    try:
        Path("/dev/full").write_bytes(b"x")
    except OSError as error:
        raise BuildError(request.message) from error
    return request


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

    def test_a_full_disk_does_not_count(self, tmp_path: Path) -> None:
        request = ChildFailure(error="", message="the compiler failed")
        _, data = self.run(tmp_path, request, fill_disk)
        assert not ChildFailure.from_json(data).is_counted

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
