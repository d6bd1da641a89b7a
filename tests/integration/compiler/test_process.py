"""Whatever a child does, its parent comes back with an outcome that says what happened."""

import os
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest

from compiler_worker import host_memory
from compiler_worker.children.child_jobs import ChildJob
from compiler_worker.children.process import ChildLimits, ChildOutcome, run_child
from compiler_worker.children.requests import ChildEvent, ChildFailure, Stage

ROOT = Path(__file__).resolve().parents[3]
GENEROUS = ChildLimits(time_s=60, memory_bytes=8 * 2**30, time_setting="SMELT_TIME")

TASK = ChildJob(
    command="task",
    code="",
    request=ChildFailure,
    result=ChildFailure,
    first_stage=Stage.BUILD,
)

RunScript = Callable[..., ChildOutcome[ChildFailure]]


def result(message: str) -> ChildFailure:
    """What `give` of a script arrives as."""
    return ChildFailure(error="", message=message)


@pytest.fixture
def events() -> list[ChildEvent]:
    return []


@pytest.fixture
def run_script(tmp_path: Path, events: list[ChildEvent]) -> RunScript:
    """Runs a Python script as a child; its request is in `request`; it may `enter` and `give`."""

    def run(body: str, limits: ChildLimits = GENEROUS) -> ChildOutcome[ChildFailure]:
        script = tmp_path / "child.py"
        prelude = """
            import ctypes, json, os, signal, subprocess, sys, time
            from pathlib import Path
            request = Path(sys.argv[3])
            def enter(stage):
                print(json.dumps({"stage": stage, "line": ""}), flush=True)
            def give(message):
                found = json.dumps({"error": "", "message": message})
                request.with_name("result.json").write_text(found)
        """
        script.write_text(textwrap.dedent(prelude) + textwrap.dedent(body))
        folder = tmp_path / "place"
        folder.mkdir()
        program = (sys.executable, str(script))
        request = ChildFailure(error="", message="a request")
        return run_child(TASK, request, folder, limits, events.append, program)

    return run


def test_a_result_comes_back_with_events_and_seconds(
    run_script: RunScript, events: list[ChildEvent]
) -> None:
    outcome = run_script("""
        enter("prove")
        print(json.dumps({"ended_stage": "prove", "duration_s": 1.5}))
        print(json.dumps({"line": "halfway"}))
        assert b"a request" in request.read_bytes()
        give("the result")
    """)
    assert (outcome.result, outcome.failure) == (result("the result"), "")
    assert (outcome.stage, outcome.durations_s) == (Stage.PROVE, {"prove": 1.5})
    assert "halfway" in [event.line for event in events]


def test_what_libraries_print_is_a_log_line_and_no_event(run_script: RunScript) -> None:
    outcome = run_script(r"""
        print("[TRT] a warning")
        print('{"stage": "no such stage"}')
        sys.stderr.write("deep trouble\nlast words without a newline")
        sys.stdout.buffer.write(b"\xff\xfe not text\n")
        give("r")
    """)
    assert outcome.result == result("r")
    assert {"[TRT] a warning", '{"stage": "no such stage"}', "deep trouble"} <= set(
        outcome.log_tail
    )
    assert "last words without a newline" in outcome.log_tail


def test_a_refusal_comes_back_in_the_childs_words(run_script: RunScript) -> None:
    outcome = run_script("""
        words = {"error": "BuildError", "message": "FP32 GEMM is not supported", "log_tail": ["x"]}
        request.with_name("result.json").write_text(json.dumps(words))
        sys.exit(3)
    """)
    assert outcome.result is None
    assert (outcome.failure, outcome.error) == ("FP32 GEMM is not supported", "BuildError")
    assert outcome.log_tail == ("x",)


def test_an_exit_code_is_told_with_the_last_lines(run_script: RunScript) -> None:
    outcome = run_script("""
        for number in range(1000):
            sys.stderr.write(f"line {number}\\n")
        raise SystemExit(7)
    """)
    assert outcome.failure == "the process exited with 7 in stage 'build'"
    assert outcome.log_tail[-1] == "line 999"
    assert len(outcome.log_tail) < 100


def test_a_segmentation_fault_is_told_by_its_name(run_script: RunScript) -> None:
    outcome = run_script("""
        enter("prove")
        sys.stderr.write("about to crash\\n")
        sys.stderr.flush()
        ctypes.string_at(0)
    """)
    assert outcome.failure == "the process was ended by SIGSEGV in stage 'prove'"
    assert "about to crash" in outcome.log_tail


def test_a_hanging_child_is_ended_with_all_it_started(run_script: RunScript) -> None:
    limits = ChildLimits(time_s=6, memory_bytes=8 * 2**30, time_setting="SMELT_TIME")
    outcome = run_script(
        """
        sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        sys.stderr.write(f"{sleeper.pid}\\n")
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
        """,
        limits,
    )
    assert outcome.failure == (
        "no result within 6 s, in stage 'build'; raise SMELT_TIME if it needs longer"
    )
    gone_or_dead(int(outcome.log_tail[-1]))


def test_the_limit_on_time_does_not_count_what_a_child_waits(
    run_script: RunScript, tmp_path: Path
) -> None:
    limit_s, turn = 5.0, tmp_path / "turn"
    os.mkfifo(turn)
    over_at = time.monotonic() + 1.5 * limit_s
    given = []

    def give_turn() -> str:
        if not given and time.monotonic() > over_at:
            given.append(turn.write_text(""))
        return ""

    limits = ChildLimits(
        time_s=limit_s, memory_bytes=8 * 2**30, time_setting="SMELT_TIME", stop_reason=give_turn
    )
    outcome = run_script(
        f"""
        enter("wait")
        Path({str(turn)!r}).read_text()
        print(json.dumps({{"ended_stage": "wait", "duration_s": 1}}), flush=True)
        enter("prove")
        signal.pause()
        """,
        limits,
    )
    assert outcome.failure == (
        "no result within 5 s, in stage 'prove'; raise SMELT_TIME if it needs longer"
    )


def test_seconds_of_a_stage_that_is_entered_again_are_summed(run_script: RunScript) -> None:
    outcome = run_script("""
        for seconds in (1.5, 2.0):
            enter("benchmark")
            print(json.dumps({"ended_stage": "benchmark", "duration_s": seconds}))
        give("r")
    """)
    assert outcome.durations_s == {"benchmark": 3.5}


def test_a_child_that_leaves_processes_behind_does_not_hold_its_parent(
    run_script: RunScript,
) -> None:
    outcome = run_script("""
        sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        sys.stderr.write(f"{sleeper.pid}\\n")
        give("r")
    """)
    assert outcome.result == result("r")
    gone_or_dead(int(outcome.log_tail[-1]))


def test_a_child_that_closes_its_pipes_is_still_waited_for(run_script: RunScript) -> None:
    outcome = run_script("""
        os.close(1)
        os.close(2)
        give("r")
        os._exit(0)
    """)
    assert outcome.result == result("r")


def test_a_greedy_child_is_ended(run_script: RunScript) -> None:
    limits = ChildLimits(time_s=60, memory_bytes=150 * 2**20, time_setting="SMELT_TIME")
    outcome = run_script(
        """
        hoard = bytearray(os.urandom(2**20)) * 300
        signal.pause()
        """,
        limits,
    )
    assert "0.15 allowed; raise SMELT_MEMORY_LIMIT_GIB" in outcome.failure
    assert outcome.peak_memory_bytes > 150 * 2**20


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Puts the worker into a container with so many MiB, of which others hold so many."""

    def put(total: int, held: int) -> None:
        for name, text in (
            ("memory.max", f"{total << 20}"),
            ("memory.current", f"{held << 20}"),
            ("memory.stat", "inactive_file 0"),
        ):
            (tmp_path / name).write_text(text)

    group = replace(host_memory.CONTROL_GROUPS[0], folder=tmp_path)
    monkeypatch.setattr(host_memory, "CONTROL_GROUPS", (group,))
    return put


LEFT = ChildLimits(time_s=60, memory_bytes=None, time_setting="SMELT_TIME")
GROWING = """
    enter("build")
    hoard = bytearray(os.urandom(2**20)) * 300
    signal.pause()
"""


def test_a_child_that_others_leave_too_little_is_ended_and_not_at_fault(
    run_script: RunScript, room: Callable[[int, int], None]
) -> None:
    room(4096, 4096 - 50)
    outcome = run_script(GROWING, LEFT)
    assert "allowed to one of 1 builds, of 0." in outcome.failure
    assert "that others leave of 4.00; free memory on this host" in outcome.failure
    assert not outcome.is_charged


def test_a_child_that_takes_all_there_is_is_at_fault(
    run_script: RunScript, room: Callable[[int, int], None]
) -> None:
    room(50, 0)
    outcome = run_script(GROWING, LEFT)
    assert "; raise SMELT_MEMORY_LIMIT_GIB if it needs more" in outcome.failure
    assert outcome.is_charged


def test_what_becomes_free_while_a_child_works_is_there_for_it(
    run_script: RunScript, room: Callable[[int, int], None], tmp_path: Path
) -> None:
    room(4096, 4096)
    looked = tmp_path / "looked"
    os.mkfifo(looked)
    looks = iter([lambda: room(4096, 0), lambda: looked.write_text("")])

    def look() -> str:
        for step in islice(looks, 1):
            step()
        return ""

    body = f"Path({str(looked)!r}).read_text()\ngive('r')"
    outcome = run_script(body, replace(LEFT, stop_reason=look))
    assert (outcome.result, outcome.failure) == (result("r"), "")


@pytest.mark.parametrize(("held", "is_charged"), [(0, True), (4000, False)])
def test_a_child_that_the_kernel_ends_is_at_fault_where_it_had_enough(
    run_script: RunScript, room: Callable[[int, int], None], held: int, *, is_charged: bool
) -> None:
    room(4096, held)
    outcome = run_script("os.kill(os.getpid(), signal.SIGKILL)", LEFT)
    assert "as the kernel does" in outcome.failure
    assert outcome.is_charged == is_charged


def test_without_a_result_success_is_no_success(run_script: RunScript) -> None:
    outcome = run_script("sys.exit(0)")
    assert outcome.failure == (
        "the process exited with 0 in stage 'build', without a result; code that it calls must "
        "not call sys.exit"
    )


def gone_or_dead(pid: int) -> None:
    """Assert that a process ends: it was killed, and is gone once its new parent reaped it."""
    try:
        process = psutil.Process(pid)
        process.wait(timeout=10)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        assert process.status() == psutil.STATUS_ZOMBIE


def test_a_crash_leaves_the_stack_in_the_log(run_script: RunScript) -> None:
    outcome = run_script("""
        from compiler_worker.children.child import prepare_to_die
        prepare_to_die()
        def load_the_engine():
            ctypes.string_at(0)
        load_the_engine()
    """)
    assert "SIGSEGV" in outcome.failure
    assert any("in load_the_engine" in line for line in outcome.log_tail)


def test_a_hang_leaves_the_stack_in_the_log(run_script: RunScript) -> None:
    limits = ChildLimits(time_s=10.0, memory_bytes=8 * 2**30, time_setting="SMELT_TIME")
    outcome = run_script(
        """
        from compiler_worker.children.child import prepare_to_die
        prepare_to_die()
        def wait_for_ever():
            signal.pause()
        wait_for_ever()
        """,
        limits,
    )
    assert "no result within 10 s" in outcome.failure
    assert any("in wait_for_ever" in line for line in outcome.log_tail)


def test_the_kernel_ends_a_child_before_its_worker(run_script: RunScript) -> None:
    outcome = run_script("""
        import resource
        from compiler_worker.children.child import prepare_to_die
        prepare_to_die()
        score = Path("/proc/self/oom_score_adj").read_text().strip()
        found = f"{score} {resource.getrlimit(resource.RLIMIT_CORE)[0]}"
        give(found)
    """)
    before = Path("/proc/self/oom_score_adj").read_text().strip()
    assert outcome.result in (result("1000 0"), result(f"{before} 0"))


def test_a_child_is_stopped_when_somebody_else_does_its_work(run_script: RunScript) -> None:
    limits = ChildLimits(
        time_s=60,
        memory_bytes=8 * 2**30,
        time_setting="SMELT_TIME",
        stop_reason=lambda: "the lease of this key was taken over",
    )
    outcome = run_script("signal.pause()", limits)
    assert (outcome.result, outcome.failure) == (None, "the lease of this key was taken over")
