"""Runs a Python script as a child of a worker."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler_worker.children.child_jobs import ChildJob
from compiler_worker.children.process import ChildLimits, ChildOutcome, run_child
from compiler_worker.children.requests import ChildEvent, ChildFailure, Stage

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
