"""How fast a fleet on one GPU serves a model, beside the engine alone.

    python -m tests.benchmarks.gpu.served_speed [--num-replicas 1 4 8 auto]

MiniLM's architecture at 128 tokens in fp16, one model for each number of replicas, all with the
same engine. `h2load` (Debian's nghttp2-client) has to be on PATH: it asks over the served port.
Where the number is `auto` it asks until there are no more of them, before anything is measured.
Requests that were answered are those that the gateway counted as OK, not what `h2load` calls so.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import urlopen

import numpy as np
import psutil
from tritonclient.grpc import InferenceServerClient

from services.contracts.model.precision_choice import AUTO
from services.pb.open_inference_v2_pb2 import ModelInferRequest
from services.replica.engine.loaded_engine import FALLBACK_KIND
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.shared_gpu import until_served
from tests.benchmarks.gpu.sources import NUM_TOKENS, SOURCES
from tests.benchmarks.newcomers import PORT, smelt

_METRICS_PORT = 18002
_PATH = f"http://127.0.0.1:{PORT}/inference.GRPCInferenceService/ModelInfer"
_SECONDS = 4
_BATCHES = (1, 8, 32)
# Requests under way: enough that every replica has a batch in its engine and one that waits.
_IN_FLIGHT = {1: 2048, 8: 256, 32: 128}
_CLIENTS = 32
_PROVEN_WITHIN_S = 420.0
# Replicas that are as many for so many loads in a row are what such a load has.
_SETTLED_LOADS = 5
_INPUTS = ("input_ids", "attention_mask")
_RECIPE = """\
kinds: [{kind}]
precisions: [{precision}]
num_replicas: {num_replicas}
gpu_share: {share}
buckets:
{buckets}
"""


class Row(NamedTuple):
    """What one load found, a second: requests and rows; cores of each part; the GPU's busy %."""

    model: str
    batch: int
    in_flight: int
    requests: float
    rows: float
    failed: int
    mean_ms: float
    gateway_cores: float
    replica_cores: float
    load_cores: float
    gpu_percent: float
    queue_us: float
    input_us: float
    infer_us: float
    output_us: float
    rows_a_run: float

    def words(self) -> str:
        """A row of a Markdown table."""
        figures = [f"{each:.2f}" if isinstance(each, float) else str(each) for each in self]
        return f"| {' | '.join(figures)} |"


class Stages(NamedTuple):
    """Sums that all replicas of a model counted: requests, seconds of stages, rows and runs."""

    requests: int
    queue_s: float
    input_s: float
    infer_s: float
    output_s: float
    rows: int
    runs: int

    @classmethod
    def of(cls, name: str) -> Self:
        """By Triton's statistics of the model; its stages are sums over requests."""
        (found,) = (
            InferenceServerClient(f"127.0.0.1:{PORT}").get_inference_statistics(name).model_stats
        )
        stats = found.inference_stats
        stages = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
        queue_s, input_s, infer_s, output_s = (each.ns / 1e9 for each in stages)
        runs = found.execution_count
        rows = found.inference_count
        return cls(stats.success.count, queue_s, input_s, infer_s, output_s, rows, runs)

    def since(self, before: Self) -> tuple[float, ...]:
        """Microseconds that a request was in each stage, and rows of a run."""
        passed = [now - was for now, was in zip(self, before, strict=True)]
        means = [1e6 * seconds / max(passed[0], 1) for seconds in passed[1:5]]
        return (*means, passed[5] / max(passed[6], 1))


def body(name: str, batch: int) -> bytes:
    """A ModelInfer message as gRPC sends it: a flag, its length, the message."""
    request = ModelInferRequest(model_name=name)
    rng = np.random.default_rng(batch)
    arrays = (
        rng.integers(1000, 20000, (batch, NUM_TOKENS)),
        np.ones((batch, NUM_TOKENS), np.int64),
    )
    for each, array in zip(_INPUTS, arrays, strict=True):
        request.inputs.add(name=each, datatype="INT64", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    message = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


def num_counted(name: str, code: str = "") -> float:
    """Requests that gateways counted for a model, of a status or all."""
    page = urlopen(f"http://127.0.0.1:{_METRICS_PORT}/metrics").read().decode()
    counted = re.findall(r"^smelt_requests_total{(.*)} (\S+)$", page, re.MULTILINE)
    return sum(
        float(value) for labels, value in counted if f'model="{name}"' in labels and code in labels
    )


def cores(words: str) -> float:
    """Seconds of processor time that processes with such a command line took so far."""
    total = 0.0
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        if words in " ".join(process.info["cmdline"] or ()):
            total += sum(process.info["cpu_times"][:2])
    return total


@contextmanager
def gpu_busy() -> Iterator[list[float]]:
    """Percent of the time in which a kernel ran, looked at while the block runs."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    found: list[float] = []
    with subprocess.Popen([*command, "-lms", "250"], stdout=subprocess.PIPE, text=True) as looking:
        yield found
        looking.terminate()
        assert looking.stdout
        found += [float(line) for line in looking.stdout.read().split()]


def measure(name: str, batch: int, in_flight: int, folder: Path) -> Row:
    """Have `h2load` ask for some seconds."""
    path = folder / f"{name}-{batch}.bin"
    path.write_bytes(body(name, batch))
    clients = min(_CLIENTS, in_flight)
    command = ["h2load", "-t", str(min(clients, 4)), "-c", str(clients)]
    command += ["-m", str(in_flight // clients), "-D", str(_SECONDS), "--warm-up-time", "1"]
    command += ["-d", str(path), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    parts = ("services.gateway", f"ServeReplica:smelt:{name}:")
    before = [cores(part) for part in parts]
    asked, answered = num_counted(name), num_counted(name, 'code="OK"')
    load_s = os.times().children_user + os.times().children_system
    began_s = time.monotonic()
    stages = Stages.of(name)
    with gpu_busy() as busy:
        found = subprocess.run([*command, _PATH], capture_output=True, text=True, check=True).stdout
    took_s = time.monotonic() - began_s
    load_s = os.times().children_user + os.times().children_system - load_s
    spent = [cores(part) - was for part, was in zip(parts, before, strict=True)]
    answered = num_counted(name, 'code="OK"') - answered
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", found)
    mean = re.search(r"time for request: +\S+ +\S+ +([\d.]+)(us|ms|s)", found)
    assert rate, found
    assert mean, found
    rps = float(rate[1])
    return Row(
        name,
        batch,
        in_flight,
        rps,
        rps * batch,
        int(num_counted(name) - asked - answered),
        float(mean[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[mean[2]],
        spent[0] / took_s,
        spent[1] / took_s,
        load_s / took_s,
        float(np.median(busy[2:] or [0.0])),
        *Stages.of(name).since(stages),
    )


def serving(name: str) -> str:
    """The kinds of engines that replicas of a model serve with."""
    replicas = json.loads(smelt("status", "--json"))["replicas"]
    return " ".join(sorted(each["engine_kind"] for each in replicas if each["model"] == name))


def add(name: str, path: Path, recipe: str, folder: Path, source: str = "minilm") -> None:
    """Add a model, and wait until its replicas serve with the engine.

    Args:
        name: of the model.
        path: of its ONNX file.
        recipe: YAML.
        folder: for files.
        source: that it was exported from.
    """
    recipe_path = folder / "recipe.yaml"
    recipe_path.write_text(recipe)
    began_s = time.monotonic()
    smelt("models", "add", name, str(path), "--recipe", str(recipe_path))
    arrays = SOURCES[source].inputs(1)
    first_s = until_served(name, {each: arrays[each] for each in _INPUTS})
    print(f"{name}: first answer {first_s:.1f} s after it was added", flush=True)
    while FALLBACK_KIND in (kinds := serving(name)) or not kinds:
        assert time.monotonic() - began_s < _PROVEN_WITHIN_S, smelt("why", name)
        time.sleep(0.5)
    print(f"{name}: served by {kinds} after {time.monotonic() - began_s:.1f} s", flush=True)


def settle(name: str, folder: Path) -> None:
    """Ask until the number of replicas stays, and print when it changed."""
    began_s = time.monotonic()
    numbers = [0]
    while numbers[-_SETTLED_LOADS:].count(numbers[-1]) < _SETTLED_LOADS:
        found = measure(name, 1, _IN_FLIGHT[1], folder)
        numbers.append(len(serving(name).split()))
        took_s = time.monotonic() - began_s
        print(f"{name}: {numbers[-1]} replicas, {found.requests:.0f}/s after {took_s:.0f} s")


def engine_alone() -> str:
    """What the engine's proof measured: the time of one call at each shape."""
    masters = json.loads(smelt("engines", "r1", "--json"))["masters"]
    proof = masters[0]["engines"][0]["proof"]
    return json.dumps(proof["timings"], indent=None)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-replicas", nargs="+", default=["1", "4", "8"])
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--kind", default="inductor")
    parser.add_argument("--precision", default="fp16")
    options = parser.parse_args()
    buckets = "\n".join(
        f"  - dims: {{batch: {{min: 1, opt: {size}, max: {size}}}}}" for size in (1, 8, 32, 64)
    )
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        folder = Path(home)
        export(SOURCES["minilm"], folder / "minilm.onnx")
        ports = ("--grpc-port", str(PORT), "--metrics-port", str(_METRICS_PORT))
        smelt("up", "--detach", *ports)
        try:
            for num in options.num_replicas:
                name = f"r{num}"
                recipe = _RECIPE.format(buckets=buckets, **(vars(options) | {"num_replicas": num}))
                add(name, folder / "minilm.onnx", recipe, folder)
                if name == "r1":
                    print(engine_alone(), flush=True)
                if num == AUTO:
                    settle(name, folder)
                print(f"| {' | '.join(Row._fields)} |\n|{'---|' * len(Row._fields)}", flush=True)
                for batch in _BATCHES:
                    print(measure(name, batch, 1, folder).words(), flush=True)
                    print(measure(name, batch, _IN_FLIGHT[batch], folder).words(), flush=True)
            print(smelt("status"), flush=True)
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
