"""What threads that spin for work cost, and gain: on the machine as it is, and with others beside.

    python -m tests.benchmarks.spinning MODEL.onnx [--seconds S] [--spinning K]

The demo's model as torch runs it, in processes with one policy of OpenMP each, and its master
(`model.onnx` below a cache's `folders`) in ONNX Runtime and OpenVINO, with and without what makes
their threads hold a processor. All take turns, each measured call after one that is not.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np

from services.contracts.kserve.tensors import Array
from tests.benchmarks.joint_runs import print_machine, spinning

TORCH = "torch"
POLICIES: dict[str, dict[str, str]] = {
    "as it comes": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
}
SIZES = ((1, 16), (8, 128))
Call = Callable[[dict[str, Array]], object]
Asked = Callable[[int, int], tuple[float, float]]


def main(arguments: list[str]) -> int:
    """Time all sides at both sizes, alone and beside others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--spinning", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help="be one of the processes")
    given = parser.parse_args(arguments)
    if given.serve:
        return _serve()
    sides = {f"torch, {name}": _asked(given.model, env) for name, env in POLICIES.items()}
    sides |= {name: _timed(call) for name, call in _sessions(given.model).items()}
    print_machine()
    for beside in (0, given.spinning):
        with spinning(beside):
            for sizes in SIZES:
                _table(sides, sizes, beside, given.seconds)
    return 0


def _table(sides: dict[str, Asked], sizes: tuple[int, int], beside: int, limit_s: float) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    ends_at, order = time.monotonic() + limit_s, list(sides)
    while time.monotonic() < ends_at or len(found[order[0]]) < 10:
        for name in order:
            found[name].append(sides[name](*sizes))
        order.reverse()
    print(f"\n{sizes[0]}x{sizes[1]}, {beside} beside, {len(found[order[0]])} calls each")
    print("\n| side | p10 ms | p50 ms | p90 ms | processor ms |\n|---|---|---|---|---|")
    for name, calls in found.items():
        tenths = quantiles((1e3 * wall_s for wall_s, _ in calls), n=10)
        busy_ms = 1e3 * median(busy_s for _, busy_s in calls)
        told = (tenths[0], tenths[4], tenths[8], busy_ms)
        print(f"| {name} | {' | '.join(f'{each:.2f}' for each in told)} |", flush=True)


def _timed(call: Call) -> Asked:
    def timed(rows: int, tokens: int) -> tuple[float, float]:
        inputs = _inputs(rows, tokens)
        call(inputs)
        started, busy = time.perf_counter(), time.process_time()
        call(inputs)
        return time.perf_counter() - started, time.process_time() - busy

    return timed


def _asked(model: str, environment: dict[str, str]) -> Asked:
    """A process of its own: OpenMP reads its policy when it is loaded. It ends with its input."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.spinning", model, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=known | environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answers = process.stdin, process.stdout

    def asked(rows: int, tokens: int) -> tuple[float, float]:
        print(rows, tokens, file=ask, flush=True)
        wall_s, busy_s = map(float, answers.readline().split())
        return wall_s, busy_s

    return asked


def _serve() -> int:
    import torch

    from services.cli.demo.minilm import sentence_embedder

    module = sentence_embedder().module

    def call(inputs: dict[str, Array]) -> object:
        with torch.inference_mode():
            return module(*(torch.from_numpy(array) for array in inputs.values()))

    timed = _timed(call)
    for line in sys.stdin:
        rows, tokens = map(int, line.split())
        print(*timed(rows, tokens), flush=True)
    return 0


def _sessions(model: str) -> dict[str, Call]:
    sides: dict[str, Call] = {}
    for name, spins in (("spinning", "1"), ("waiting asleep", "0")):
        sides[f"ONNX Runtime, {name}"] = _onnxruntime(model, spins)
    for name, is_pinned in (("pinned", True), ("not pinned", False)):
        sides[f"OpenVINO, {name}"] = _openvino(model, is_pinned)
    return sides


def _onnxruntime(model: str, spins: str) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", spins)
    session = onnxruntime.InferenceSession(model, options)
    return lambda inputs: session.run(None, inputs)


def _openvino(model: str, is_pinned: bool) -> Call:
    import openvino

    core = openvino.Core()
    config = {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": is_pinned}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    return lambda inputs: request.infer(inputs, share_inputs=True)


def _inputs(rows: int, tokens: int) -> dict[str, Array]:
    drawn = np.random.default_rng(0).integers(1000, 20000, (rows, tokens))
    return {"input_ids": drawn, "attention_mask": np.ones((rows, tokens), np.int64)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
