"""Verdicts of a machine on which every call waits for a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from compiler_worker.timing.paired import TimedCall, ratio_of
from services.contracts.model.manifest import SideTiming, Timing
from services.contracts.ratio import Ratio
from services.contracts.selection.speed_gate import SpeedVerdict, verdict

# all-MiniLM-L6-v2, 8 x 128, beside six other processes on two CPUs, call by call: seconds, the
# share of them that threads waited, and the seconds for which the busiest and all computed.
OPENVINO_BF16 = """
0.234 1.78 0.054 0.064, 0.680 1.54 0.058 0.075, 0.271 1.33 0.055 0.090, 0.152 1.54 0.061 0.069
0.206 1.41 0.063 0.076, 0.233 1.35 0.053 0.079, 0.153 1.34 0.055 0.076, 0.151 1.15 0.056 0.083
0.133 1.31 0.057 0.077, 0.125 1.37 0.053 0.070, 0.147 1.10 0.049 0.082, 0.126 1.08 0.046 0.078
0.173 1.43 0.056 0.071, 0.137 1.43 0.058 0.072, 0.139 1.60 0.061 0.068, 0.128 1.51 0.056 0.064
0.134 1.46 0.059 0.066, 0.126 1.48 0.054 0.061
"""
ONNXRUNTIME = """
0.772 1.37 0.107 0.176, 0.451 1.23 0.103 0.161, 0.689 1.84 0.113 0.151, 0.305 1.74 0.089 0.154
0.373 1.33 0.085 0.158, 0.407 1.20 0.098 0.149, 0.154 0.82 0.113 0.143, 0.229 0.98 0.109 0.152
0.193 1.05 0.086 0.169, 0.261 1.02 0.090 0.148, 0.279 1.04 0.087 0.140, 0.264 0.94 0.094 0.145
0.266 1.05 0.093 0.131, 0.263 1.18 0.081 0.154, 0.304 2.22 0.100 0.152, 0.347 1.33 0.087 0.172
0.326 1.30 0.084 0.163, 0.291 2.30 0.089 0.145
"""
FALLBACK = """
0.895 1.38 0.144 0.281, 0.860 1.07 0.138 0.268, 0.972 1.09 0.141 0.278, 0.842 1.00 0.138 0.275
0.536 1.03 0.135 0.265, 0.831 1.03 0.137 0.273, 0.498 1.21 0.124 0.244, 0.487 0.89 0.136 0.269
0.259 1.70 0.124 0.245, 0.280 0.84 0.122 0.242, 0.445 0.92 0.130 0.259, 0.452 0.95 0.124 0.246
0.659 0.98 0.136 0.264, 0.455 1.16 0.134 0.260, 0.522 2.13 0.134 0.262, 0.556 1.20 0.143 0.278
0.506 1.17 0.128 0.249, 0.536 1.49 0.135 0.267
"""


def calls(recorded: str) -> list[TimedCall]:
    rows = (map(float, row.split()) for row in recorded.replace("\n", ",").split(",") if row)
    names = ("seconds", "waited_share", "least_s", "most_s")
    return [TimedCall(**dict(zip(names, row, strict=True))) for row in rows]


def timing(ratio: Ratio) -> Timing:
    side = {"p50_s": 1.0, "p95_s": 1.0, "throughput": 1.0}
    fallback = SideTiming(**side, peak_memory_bytes=1)
    return Timing(bucket="b", sizes={}, **side, eager_p50_s=1.0, fallback=fallback, ratio=ratio)


def test_an_engine_that_is_much_faster_serves() -> None:
    ratio = ratio_of(calls(FALLBACK), calls(OPENVINO_BF16))
    assert 1.4 < ratio.low < ratio.median < ratio.high < 4 * ratio.low
    assert verdict([timing(ratio)]) is SpeedVerdict.KEEPS_UP


def test_one_that_may_be_slower_is_not_measurable() -> None:
    """Although it is the faster one of each pair: the fallback waits for its slowest thread."""
    fallback, engine = calls(FALLBACK), calls(ONNXRUNTIME)
    is_faster = [e.seconds < f.seconds for f, e in zip(fallback, engine, strict=True)]
    assert all(is_faster)
    ratio = ratio_of(fallback, engine)
    assert ratio.low < 1 < ratio.high
    assert verdict([timing(ratio)]) is SpeedVerdict.NOT_MEASURABLE


def test_what_a_device_computes_is_not_bounded_by_the_threads_of_the_host() -> None:
    call = TimedCall(seconds=2.0, waited_share=0.5, least_s=1.1)
    assert call.computing_s == pytest.approx((1.0, 2.0))


_ONE_CPU = """
import os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from compiler_worker.inputs.sampling import Sample, SampleVariant
from compiler_worker.timing.benchmark import BenchmarkLimits, Contender, time_sides
from services.contracts.hardware.facts import Platform
from services.contracts.model.recipe import Recipe

class Hashing:
    # Two threads do a half each, as those of an engine do.
    def __init__(self, num_bytes):
        self.half = bytes(num_bytes // 2)
        self.threads = ThreadPoolExecutor(2)
    def run(self, inputs):
        return {"hashes": list(self.threads.map(sha256, [self.half] * 2))}

sample = Sample(bucket="b", sizes={}, variant=SampleVariant.FULL, inputs={})
limits = BenchmarkLimits(seconds_per_side=0, min_iterations=10)
sides = [Contender(model=Hashing(num_mib * 2**20)) for num_mib in (2, 16)]
command = [sys.executable, "-c", "while True: pass"]
beside = [subprocess.Popen(command) for _ in range(3)]
try:
    engine, fallback = time_sides(sides, Platform.CPU, sample, Recipe(), limits)
finally:
    for each in beside:
        each.kill()
        each.wait()
print(engine.ratio.canonical_json().decode())
"""


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits"
)
def test_a_side_that_computes_an_eighth_is_faster_beside_processes_on_its_cpu() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _ONE_CPU], capture_output=True, text=True, check=True
    )
    ratio = Ratio.from_json(found.stdout.encode())
    assert ratio.low < 8 < ratio.high
    assert verdict([timing(ratio)]) is SpeedVerdict.KEEPS_UP
