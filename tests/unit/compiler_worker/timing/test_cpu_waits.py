"""What threads waited for a CPU, on a CPU that has another thing to do."""

import subprocess
import sys
from pathlib import Path

import pytest

_SHARES_ITS_CPU = """
import os, subprocess, sys, threading, time
from compiler_worker.timing.cpu_waits import cpu_times
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
waits = []
def spin():
    # At the beginning of a thread: all of its waits are seen.
    before, ends_at = cpu_times(), time.perf_counter() + 1.0
    while time.perf_counter() < ends_at:
        pass
    after = cpu_times()
    waits.append(after.waited_since(before))
    waits.append(after.busiest_other_since(before))
    # A thread that looks knows its own time better.
    looking = threading.Thread(target=look, args=(before,))
    looking.start()
    looking.join()
def look(before):
    waits.append(cpu_times().busiest_other_since(before))
beside = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
finally:
    beside.kill()
    beside.wait()
print(*waits)
"""


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits"
)
def test_a_thread_beside_another_process_waits_for_its_cpu() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _SHARES_ITS_CPU], capture_output=True, text=True, check=True
    )
    waited_s, by_others_s, computed_s = map(float, found.stdout.split())
    assert waited_s > 0.2, "half of the second, or more where others run too"
    assert 0 < computed_s < 0.8, "what is left of it"
    assert by_others_s < computed_s / 2, "the thread that asks is left out"
