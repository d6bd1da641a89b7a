"""How fast an engine serves again: after its only replica is killed, and after the fleet's start.

    python -m tests.benchmarks.gpu.recovery [--callers 8]

MiniLM's architecture in fp16 by Inductor, one replica. It is killed with SIGKILL under load with
deadlines of 60 s; then the fleet is stopped and started again, with the engine in its store.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from services.replica.engine.loaded_engine import FALLBACK_KIND
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.served_speed import add, serving
from tests.benchmarks.gpu.shared_gpu import kill_replica, load, until_served
from tests.benchmarks.gpu.sources import SOURCES
from tests.benchmarks.newcomers import PORT, smelt

_BEFORE_S = 3.0
_LOOK_S = 0.1
_INPUTS = ("input_ids", "attention_mask")
_UP = ("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
_RECIPE = """\
kinds: [inductor]
precisions: [fp16]
num_replicas: 1
buckets:
  - dims: {batch: {min: 1, opt: 1, max: 8}}
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--callers", type=int, default=8)
    num_callers: int = parser.parse_args().callers
    arrays = SOURCES["minilm"].inputs(1)
    inputs = {each: arrays[each] for each in _INPUTS}
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        export(SOURCES["minilm"], Path(home) / "minilm.onnx")
        try:
            smelt(*_UP)
            add("m", Path(home) / "minilm.onnx", _RECIPE, Path(home))
            with load("m", inputs, num_callers) as asking:
                time.sleep(_BEFORE_S)
                kill_replica("m")
                # Each caller may have had one answer under way.
                num_answered = asking.answered + num_callers
                began_s = time.monotonic()
                while asking.answered <= num_answered:
                    time.sleep(_LOOK_S)
                print(f"serves again after {time.monotonic() - began_s:.1f} s, by {serving('m')}")
            smelt("down")
            began_s = time.monotonic()
            smelt(*_UP)
            up_s = time.monotonic() - began_s
            until_served("m", inputs)
            print(f"up after {up_s:.1f} s, first answer after {time.monotonic() - began_s:.1f} s")
            while FALLBACK_KIND in serving("m"):
                time.sleep(_LOOK_S)
            print(f"an engine after {time.monotonic() - began_s:.1f} s", flush=True)
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
