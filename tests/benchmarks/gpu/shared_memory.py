"""What placement asks for many models on one GPU, and what their replicas hold of it.

    python -m tests.benchmarks.gpu.shared_memory [--models 50] [--settle-seconds 150]

One engine is built and proven (MiniLM's architecture, fp16, one bucket of 1 to 8 rows); the models
are names for its master, pinned, without a `gpu_share`. Printed are what placement asks for, part
by part; what one process holds of the GPU after each step of a load; and what the whole fleet holds
once all that have room are loaded, after a first request of each, after one of the largest size,
and while all are asked for that at the same time. Where `nvidia-smi` shows processes, so is each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient

from services.cli.registry import open_registry_to_publish
from services.cli.settings import CliSettings
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Residency
from services.contracts.selection.gpu_share import gpu_share
from tests.benchmarks.gpu.engine_build import export
from tests.benchmarks.gpu.on_demand import RECIPE, publish
from tests.benchmarks.gpu.served_speed import add
from tests.benchmarks.gpu.sources import SOURCES
from tests.benchmarks.newcomers import PORT, answer, smelt

_LARGEST = 8
_BUSY_S = 10.0
_LOOK_S = 3.0
_INPUTS = ("input_ids", "attention_mask")
_MIB = 2**20
_GIB = 2**30


def rows(batch: int) -> dict[str, Array]:
    """Inputs of a request."""
    arrays = SOURCES["minilm"].inputs(batch)
    return {each: arrays[each] for each in _INPUTS}


def nvidia_smi(query: str) -> list[list[str]]:
    """Fields of each line that it answers."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(", ") for line in found.splitlines() if line.strip()]


def used_mib() -> float:
    """Of the whole GPU."""
    return float(nvidia_smi("--query-gpu=memory.used")[0][0])


def show(step: str, num_models: int, before_mib: float) -> None:
    """Print what the fleet holds now beyond what the GPU had in use before it."""
    held_mib = used_mib() - before_mib
    each_mib = held_mib / max(num_models, 1)
    print(f"{step}: {held_mib:.0f} MiB, {each_mib:.0f} MiB a model", flush=True)
    processes = nvidia_smi("--query-compute-apps=used_memory")
    known = sorted(float(each[0]) for each in processes if each[0].isdecimal())
    if known:
        print(
            f"  {len(known)} processes: {known[0]:.0f} to {known[-1]:.0f} MiB, median "
            f"{np.median(known):.0f}, together {sum(known):.0f}",
            flush=True,
        )


def show_placement() -> None:
    """Print what a replica asks for, and the proof's figures that it comes from."""
    registry = open_registry_to_publish(CliSettings())
    version = registry.model_version("m00")
    engines = registry.engines(version.master.digest)
    for proof in (engine.proof for engine in engines):
        print(
            f"proof: engine {proof.peak_memory_bytes / _MIB:.0f} MiB held, eager "
            f"{proof.eager_peak_memory_bytes / _MIB:.0f} MiB held",
            flush=True,
        )
        for timing in proof.timings:
            fallback = timing.fallback.peak_memory_bytes / _MIB if timing.fallback else float("nan")
            peak_mib = (timing.peak_memory_bytes or 0) / _MIB
            print(f"  at {timing.sizes}: engine {peak_mib:.0f} MiB, fallback {fallback:.0f} MiB")
    proofs = [engine.proof for engine in engines]
    memory_gib = next(proof.device.memory_gib for proof in proofs if proof.device)
    share = gpu_share(version, proofs, memory_gib)
    print(
        f"placement: {share.asked:g} of {memory_gib} GiB is {share.asked * memory_gib:.2f} GiB; "
        f"needed at least {share.needed * memory_gib:.2f} GiB",
        flush=True,
    )


def one_process() -> None:
    """Load the engine as a replica does, and print what this process then holds."""
    import torch

    from services.engines.base import LoadSpec
    from services.engines.device.device_probe import probe_device
    from services.engines.inductor.inductor_engine import InductorEngine

    registry = open_registry_to_publish(CliSettings())
    version = registry.model_version("m00")
    [found] = registry.engines(version.master.digest)
    spec = LoadSpec(
        manifest=found.manifest,
        master=version.master,
        directory=registry.materialise_engine(found),
        master_path=registry.materialise_master(version.master) / "model.onnx",
        device=probe_device(),
    )
    before_mib = used_mib()

    def lap(step: str) -> None:
        torch.cuda.synchronize()
        held_mib = used_mib() - before_mib
        reserved_mib = torch.cuda.memory_reserved() / _MIB
        print(f"one process, {step}: {held_mib:.0f} MiB, of which torch {reserved_mib:.0f}")

    torch.zeros(1, device="cuda")
    lap("with a CUDA context")
    engine = InductorEngine.load(spec)
    lap("with the engine loaded")
    for batch in (1, _LARGEST, _LARGEST):
        engine.run(rows(batch))
        lap(f"after a batch of {batch}")
    second = InductorEngine.load(spec)
    second.run(rows(_LARGEST))
    lap("with the engine loaded twice")
    second.close()
    lap("with the second one closed")


def ask_all(names: Iterable[str], batch: int) -> None:
    """One request for each model, one after the other."""
    client = InferenceServerClient(f"127.0.0.1:{PORT}")
    for name in names:
        answer(client, name, rows(batch), timeout_s=60.0)


def ask_together(names: Iterable[str]) -> None:
    """Ask all models at the same time, for some seconds, for the largest batch."""

    def ask(name: str) -> None:
        client = InferenceServerClient(f"127.0.0.1:{PORT}")
        until_s = time.monotonic() + _BUSY_S
        while time.monotonic() < until_s:
            answer(client, name, rows(_LARGEST), timeout_s=60.0)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def served(seconds: float) -> list[str]:
    """The models that replicas serve with an engine, once there are no more for a while."""
    until_s = time.monotonic() + seconds
    found: list[str] = []
    while time.monotonic() < until_s:
        replicas = json.loads(smelt("status", "--json"))["replicas"]
        now = sorted({each["model"] for each in replicas if each["engine_kind"] == "inductor"})
        if now != found:
            print(f"{len(now)} models serve with {used_mib():.0f} MiB in use", flush=True)
        found = now
        time.sleep(_LOOK_S)
    return found


def prepare(folder: Path, num_models: int) -> None:
    """A store with one engine, which all the names share."""
    export(SOURCES["minilm"], folder / "minilm.onnx")
    smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
    try:
        add("first", folder / "minilm.onnx", RECIPE, folder)
    finally:
        smelt("down")
    for number in range(num_models):
        publish(f"m{number:02}", "first", Residency.PINNED, None)
    smelt("models", "remove", "first")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--settle-seconds", type=float, default=150.0)
    parser.add_argument("--one-process", action="store_true", help="in SMELT_HOME; used inside")
    options = parser.parse_args()
    if options.one_process:
        one_process()
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ["SMELT_HOME"] = home
        prepare(Path(home), options.models)
        show_placement()
        module = "tests.benchmarks.gpu.shared_memory"
        subprocess.run([sys.executable, "-m", module, "--one-process"], check=True)
        os.environ["SMELT_CONTROLLER_BUILDS"] = "false"
        before_mib = used_mib()
        print(f"the GPU without a fleet: {before_mib:.0f} MiB", flush=True)
        smelt("up", "--detach", "--grpc-port", str(PORT), "--metrics-port", "0")
        try:
            names = served(options.settle_seconds)
            show("loaded", len(names), before_mib)
            ask_all(names, 1)
            show("after a first request of each", len(names), before_mib)
            ask_all(names, _LARGEST)
            show("after one of the largest size", len(names), before_mib)
            ask_together(names)
            show("after all were asked at the same time", len(names), before_mib)
        finally:
            smelt("down")


if __name__ == "__main__":
    main()
