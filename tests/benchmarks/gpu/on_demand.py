"""More models than a GPU has room for: they are asked by Zipf's law, and come and go.

    python -m tests.benchmarks.gpu.on_demand [--models 50] [--fit 10] [--seconds 240] [--rate 1]

One engine is built and proven; the models are names for its master, all `residency: on-demand`,
with a `gpu_share` of which so many fit; with `--fit 0` each asks for what the engine's proof has
measured, as models do that name no share. Requests come at random moments, each with a deadline of
20 s. A pinned model beside them is asked some times a second, before and meanwhile. With
`--simulate` the GPU is one in name, of a Ray on this host, and nothing is built.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Recipe, Residency
from services.contracts.selection.gpu_share import gpu_share
from services.telemetry.metrics_page import metrics_page
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.served_speed import add
from tests.benchmarks.gpu.shared_gpu import until_served
from tests.benchmarks.gpu.sources import SOURCES
from tests.benchmarks.newcomers import PORT, answer, smelt
from tests.integration.hardware_change.cluster_keeper import ray_cluster

_DEADLINE_S = 20.0
_SETTLED_WITHIN_S = 180.0
_SETTLED_LOOKS = 3
# A request that found its model loaded takes milliseconds, a load seconds.
_WAITED_S = 0.5
# Engines of fp16 against the fallback's fp32, which answers until an engine is loaded.
_TOLERANCE = 0.02
_GENERATION = "cuda-sm90"
_MEANWHILE = "while others come and go"
_INPUTS = ("input_ids", "attention_mask")
RECIPE = """\
kinds: [inductor]
precisions: [fp16]
num_replicas: 1
buckets:
  - dims: {batch: {min: 1, opt: 1, max: 8}}
"""


class Asked:
    """What became of requests; each has a thread of its own.

    Attributes:
        took_s: of those that were answered.
        failed: how many were not, by message.
        num_wrong: answers that differ from the first one of all.
    """

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.failed = Counter[str]()
        self.num_wrong = 0
        arrays = SOURCES["minilm"].inputs(1)
        self._inputs = {each: arrays[each] for each in _INPUTS}
        self._client = InferenceServerClient(f"127.0.0.1:{PORT}")
        self._wanted: dict[str, Array] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, name: str) -> None:
        """Ask in the background."""
        self._threads.append(threading.Thread(target=self._ask, args=(name,)))
        self._threads[-1].start()

    def end(self) -> None:
        """Wait for all."""
        for thread in self._threads:
            thread.join()

    def _ask(self, name: str) -> None:
        began_s = time.monotonic()
        try:
            found = answer(self._client, name, self._inputs, timeout_s=_DEADLINE_S)
        except InferenceServerException as error:
            self.failed[f"{error.status()}: {str(error.message())[:160]}"] += 1
            return
        self.took_s.append(time.monotonic() - began_s)
        (array,) = found.values()
        wanted = self._wanted.setdefault("first", array)
        self.num_wrong += bool(np.abs(array - wanted).max() > _TOLERANCE)

    def words(self) -> str:
        """Counts and times."""
        took = np.array(self.took_s or [np.nan])
        return (
            f"{len(self.took_s)} answered, {self.failed.total()} failed, {self.num_wrong} wrong; "
            f"p50 {1e3 * np.median(took):.1f} ms, p99 {1e3 * np.quantile(took, 0.99):.1f} ms, "
            f"longest {took.max():.2f} s"
        )


@contextmanager
def pinned_asked(what: str, rate: float) -> Iterator[None]:
    """Ask the pinned model so many times a second, and print how long that took."""
    asked = Asked()
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(1.0 / rate):
            asked.begin("pinned")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        asked.end()
        print(f"pinned model, {what}: {asked.words()} {dict(asked.failed) or ''}", flush=True)


@contextmanager
def gpu_memory(found: list[float]) -> Iterator[None]:
    """Note the GPU's memory in use, in MiB, each second; nothing without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if not shutil.which(command[0]):
        yield
        return
    with subprocess.Popen([*command, "-l", "1"], stdout=subprocess.PIPE, text=True) as looking:
        yield
        looking.terminate()
        assert looking.stdout
        found += [float(line) for line in looking.stdout.read().split()]


def figure(address: str, name: str, *labels: str) -> float:
    """The sum of all series of a metric with these labels."""
    page = metrics_page(address) or ""
    lines = (line for line in page.splitlines() if line.startswith(f"{name}{{"))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(x in line for x in labels))


def publish(name: str, like: str, residency: Residency, share: float | None) -> None:
    """Another name for a model's master."""
    registry = open_registry_to_publish(CliSettings())
    version = registry.model_version(like)
    changes = {"residency": residency, "gpu_share": share, "num_replicas": 1}
    registry.add_model_version(
        name=name,
        master=version.master,
        recipe=Recipe.model_validate(version.recipe.model_dump() | changes),
        source=version.source,
        source_fingerprint=version.source_fingerprint,
        dim_limits=version.dim_limits,
        fallback_verdict=version.fallback_verdict,
    )


def placement() -> str:
    """What a replica asks for, and needs at least; "" where no engine was proven on a GPU."""
    registry = open_registry_to_publish(CliSettings())
    version = registry.model_version("pinned")
    proofs = [engine.proof for engine in registry.engines(version.master.digest)]
    sizes_gib = [proof.device.memory_gib for proof in proofs if proof.device]
    if not sizes_gib:
        return ""
    share = gpu_share(version, proofs, sizes_gib[0])
    asked_gib, needed_gib = (each * sizes_gib[0] for each in (share.asked, share.needed))
    return f"a replica asks for {asked_gib:.2f} GiB and needs {needed_gib:.2f} GiB at least"


def until_settled() -> Counter[str]:
    """Wait until no model is on its way; how many are in each state."""
    began_s = time.monotonic()
    until_s = began_s + _SETTLED_WITHIN_S
    num_settled = 0
    before = Counter[str]()
    while True:
        models = json.loads(smelt("status", "--json"))["models"]
        states = Counter(model["state"] for model in models)
        if states != before:
            print(f"after {time.monotonic() - began_s:.1f} s: {dict(states)}", flush=True)
        before = states
        is_settled = not states.keys() & {"LOADING", "UNLOADING"}
        # One begins a moment after the one before.
        num_settled = num_settled + 1 if is_settled else 0
        if num_settled == _SETTLED_LOOKS or time.monotonic() > until_s:
            return states
        time.sleep(1.0)


def ask_by_zipf(options: argparse.Namespace, names: list[str]) -> Asked:
    """Requests at random moments, the k-th model as often as 1 / k ** exponent."""
    rng = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, len(names) + 1) ** options.exponent
    asked = Asked()
    until_s = time.monotonic() + options.seconds
    while time.monotonic() < until_s:
        asked.begin(names[rng.choice(len(names), p=weights / weights.sum())])
        time.sleep(rng.exponential(1.0 / options.rate))
    asked.end()
    return asked


def prepare(options: argparse.Namespace, folder: Path, share: float | None) -> None:
    """A store with one engine, which all the names share."""
    export(SOURCES["minilm"], folder / "minilm.onnx")
    recipe = RECIPE + (f"gpu_share: {share}\n" if share else "")
    if options.simulate:
        (folder / "recipe.yaml").write_text(recipe)
        source = str(folder / "minilm.onnx")
        smelt("models", "add", "first", source, "--recipe", str(folder / "recipe.yaml"))
    else:
        smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
        add("first", folder / "minilm.onnx", recipe, folder)
        smelt("down")
    publish("pinned", "first", Residency.PINNED, share)
    for number in range(options.models):
        publish(f"m{number:02}", "first", Residency.ON_DEMAND, share)
    smelt("models", "remove", "first")


def measure(options: argparse.Namespace, running: dict[str, str]) -> None:
    """Ask, and print what was found."""
    arrays = SOURCES["minilm"].inputs(1)
    until_served("pinned", {each: arrays[each] for each in _INPUTS})
    print(f"models by state: {dict(until_settled())}", flush=True)
    with pinned_asked("alone", options.pinned_rate):
        time.sleep(10.0)
    memory_mib: list[float] = []
    names = [f"m{number:02}" for number in range(options.models)]
    with gpu_memory(memory_mib), pinned_asked(_MEANWHILE, options.pinned_rate):
        asked = ask_by_zipf(options, names)
    loads_s = [took_s for took_s in asked.took_s if took_s >= _WAITED_S]
    gateway, controller = running["metrics_address"], running["controller_metrics_address"]
    load = "smelt_on_demand_load_duration_seconds"
    ready = 'outcome="ready"'
    loads = figure(controller, f"{load}_count", ready)
    mean_s = figure(controller, f"{load}_sum", ready) / max(loads, 1)
    num_asked = len(asked.took_s) + asked.failed.total()
    misses = figure(gateway, "smelt_on_demand_misses_total")
    print(f"on-demand models: {asked.words()}")
    for message, number in asked.failed.items():
        print(f"failed {number}: {message}")
    print(
        f"misses {misses:.0f}, hits {num_asked - misses:.0f}; waited {_WAITED_S} s or longer: "
        f"{len(loads_s)}, p50 {np.median(loads_s or [0]):.2f} s, longest "
        f"{max(loads_s, default=0):.2f} s\n"
        f"loads {loads:.0f}, {mean_s:.2f} s on average by the controller; without success "
        f"{figure(controller, f'{load}_count') - loads:.0f}; evictions "
        f"{figure(controller, 'smelt_on_demand_evictions_total'):.0f}"
    )
    if memory_mib:
        print(
            f"GPU memory in use: {max(memory_mib):.0f} MiB at most, {np.median(memory_mib):.0f} p50"
        )
    print(placement(), flush=True)
    print(smelt("status"), flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--fit", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--exponent", type=float, default=1.0)
    parser.add_argument("--pinned-rate", type=float, default=10.0)
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    # And the pinned one.
    share = int(1e4 / (options.fit + 1)) / 1e4 if options.fit else None
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["SMELT_HOME"] = home
        if options.simulate:
            os.environ["SMELT_CONTROLLER_BUILDS"] = "false"
        prepare(options, Path(home), share)
        os.environ["SMELT_CONTROLLER_BUILDS"] = "false"
        ports = ["--grpc-port", str(PORT), "--metrics-port", "0"]
        if options.simulate:
            labels = NodeClass(generation=_GENERATION, memory_gib=80).labels()
            labels |= {SIMULATED_LABEL: _GENERATION}
            ports += ["--ray-address", stack.enter_context(ray_cluster(labels, 1)).address]
        running = json.loads(smelt("up", "--detach", *ports, "--json"))
        try:
            measure(options, running)
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
