"""`tests.benchmarks.plan_against_fleet` on a GPU, with a fleet that serves BERT-base.

    python -m tests.benchmarks.gpu.plan_on_gpu [--precisions fp32 fp16] [--seconds 20]

384 tokens by Inductor, one replica, up to 16 rows a batch; a model for each precision.
"""

import argparse
import os
import tempfile
from pathlib import Path

from tests.benchmarks import plan_against_fleet
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.served_speed import add
from tests.benchmarks.gpu.sources import SOURCES
from tests.benchmarks.newcomers import PORT, smelt

_SOURCE = "bert-base-384"
_RECIPE = """\
kinds: [inductor]
precisions: [{precision}]
num_replicas: 1
buckets:
  - dims: {{batch: {{min: 1, opt: 1, max: 1}}}}
  - dims: {{batch: {{min: 1, opt: 4, max: 4}}}}
  - dims: {{batch: {{min: 1, opt: 16, max: 16}}}}
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16"])
    parser.add_argument("--clients", default="8")
    parser.add_argument("--seconds", default="20")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        path = Path(home) / f"{_SOURCE}.onnx"
        export(SOURCES[_SOURCE], path)
        smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
        asked = ("--port", str(PORT), "--seconds", options.seconds, "--clients", options.clients)
        try:
            for precision in options.precisions:
                name = f"bert-{precision}"
                recipe = _RECIPE.format(precision=precision)
                add(name, path, recipe, Path(home), _SOURCE)
                plan_against_fleet.main("--model", name, *asked)
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
