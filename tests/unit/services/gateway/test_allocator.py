"""Large messages do not fault their pages in anew each time."""

import platform
import subprocess
import sys

import pytest

# Filling 600 kB touches about 146 pages; 200 rounds without reuse fault about 29,000 times.
_SCRIPT = """
import resource
from services.gateway.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        bytearray(b"x" * 600_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(), int(keep_freed_memory()), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these thresholds")
def test_freed_memory_is_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=True, capture_output=True, text=True
    )
    before, is_set, after = map(int, done.stdout.split())
    assert is_set == 1
    assert after < 2000 < before
