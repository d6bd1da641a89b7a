"""How fast an engine serves again: after its only replica is killed, and after the fleet's start.

    python -m tests.benchmarks.gpu.recovery [--callers 8] [--starts 1] [--auto]

MiniLM's architecture in fp16 by Inductor, one replica. It is killed with SIGKILL under load with
deadlines of 20 s; then the fleet is stopped and started again, with the engine in its store. With
`--auto` the recipe names no kind and no precision, and what serves is shown until all are timed.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from services.replica.engine.loaded_engine import FALLBACK_KIND
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.served_speed import add, serving
from tests.benchmarks.gpu.shared_gpu import NUM_REQUESTS, kill_replica, load, until_served
from tests.benchmarks.gpu.sources import SOURCES
from tests.benchmarks.newcomers import PORT, smelt
from tests.integration.newcomers.exports import Inputs

_BEFORE_S = 3.0
_LOOK_S = 0.1
_SLOW_LOOK_S = 1.0
# A joint run begins a moment after the last build.
_IDLE_LOOKS = 10
_INPUTS = ("input_ids", "attention_mask")
_UP = ("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
_NAMED = """\
kinds: [inductor]
precisions: [fp16]
"""
_RECIPE = """\
num_replicas: 1
buckets:
  - dims: {batch: {min: 1, opt: 1, max: 8}}
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--auto", action="store_true")
    options = parser.parse_args()
    arrays = SOURCES["minilm"].inputs(1)
    inputs = {each: arrays[each] for each in _INPUTS}
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        path = Path(home) / "minilm.onnx"
        export(SOURCES["minilm"], path)
        try:
            smelt(*_UP)
            began_s = time.monotonic()
            add("m", path, _RECIPE if options.auto else _NAMED + _RECIPE, Path(home))
            if options.auto:
                until_decided("m", began_s)
            kill("m", inputs, options.callers)
            for _ in range(options.starts):
                smelt("down")
                start("m", inputs)
        finally:
            smelt("down")


def until_decided(name: str, began_s: float) -> None:
    """Print what serves whenever it changes, until nothing is left to build or to time."""
    before = ""
    num_idle = 0
    while num_idle < _IDLE_LOOKS:
        status = json.loads(smelt("status", "--json"))
        served = " ".join(
            f"{each['engine_kind']} {each['engine_precision']}" for each in status["replicas"]
        )
        if served != before:
            print(f"{name}: {served} serves {time.monotonic() - began_s:.1f} s after it was added")
        before = served
        is_idle = not status["builds"] and not any(m["builds"] for m in status["models"])
        num_idle = num_idle + 1 if is_idle else 0
        time.sleep(_SLOW_LOOK_S)
    print(f"{name}: decided after {time.monotonic() - began_s:.1f} s\n{smelt('why', name)}")


def kill(name: str, inputs: Inputs, num_callers: int) -> None:
    """Kill the only replica under load."""
    with load(name, inputs, num_callers) as asking:
        time.sleep(_BEFORE_S)
        kill_replica(name)
        # Each caller may have had one answer under way.
        num_answered = asking.answered + num_callers
        began_s = time.monotonic()
        asking.until(num_answered + 1)
        print(f"serves again after {time.monotonic() - began_s:.1f} s, by {serving(name)}")
        asking.until(NUM_REQUESTS)


def start(name: str, inputs: Inputs) -> None:
    """Start the fleet with the engine in its store."""
    began_s = time.monotonic()
    smelt(*_UP)
    up_s = time.monotonic() - began_s
    until_served(name, inputs)
    print(f"up after {up_s:.1f} s, first answer after {time.monotonic() - began_s:.1f} s")
    while FALLBACK_KIND in serving(name):
        time.sleep(_LOOK_S)
    print(f"an engine after {time.monotonic() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
