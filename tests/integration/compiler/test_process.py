"""Whatever a child does, its parent comes back with an outcome that says what happened."""

import os
import time
from pathlib import Path

import psutil
import pytest

from compiler_worker.children.process import ChildLimits
from compiler_worker.children.requests import ChildEvent, Stage
from services.contracts.process import disk_room
from tests.integration.compiler.child_script import RunScript, events, result, run_script

__all__ = ["events", "run_script"]  # fixtures

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize(("least_bytes", "is_counted"), [(0, True), (2**62, False)])
def test_a_crash_while_the_disk_is_full_does_not_count(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch, least_bytes: int, is_counted: bool
) -> None:
    monkeypatch.setattr(disk_room, "LEAST_FREE_BYTES", least_bytes)
    outcome = run_script("os.kill(os.getpid(), signal.SIGBUS)")
    assert outcome.failure.startswith("the process was ended by SIGBUS")
    assert outcome.is_counted is is_counted


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
        from compiler_worker.children.child import configure_crash_handling
        configure_crash_handling()
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
        from compiler_worker.children.child import configure_crash_handling
        configure_crash_handling()
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
        from compiler_worker.children.child import configure_crash_handling
        configure_crash_handling()
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
