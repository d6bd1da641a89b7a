"""A child ends with its parent, however the parent ends."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_child_dies_with_its_parent() -> None:
    """The parent is killed, so that no handler of its own can clean up."""
    child_code = """
        import os, signal, sys
        from services.contracts.process.lifetime import end_with_parent
        end_with_parent(int(sys.argv[1]))
        print(os.getpid(), flush=True)
        signal.pause()
    """
    parent_code = f"""
        import os, signal, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", {textwrap.dedent(child_code)!r},
                                  str(os.getpid())], start_new_session=True)
        signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent_code)], stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        parent.send_signal(signal.SIGKILL)
        # The child shares the pipe, and nothing but its death closes its end.
        assert parent.stdout.read() == b""


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    # Process 1 is not its parent, so it looks as if another one had taken the child in.
    code = """
        import os
        from services.contracts.process.lifetime import end_with_parent
        end_with_parent(1 if os.getppid() != 1 else 2)
        print("alive")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_without_a_parent_nothing_happens() -> None:
    code = (
        "from services.contracts.process import lifetime; lifetime.end_with_parent(0); print('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout == b"on\n"
