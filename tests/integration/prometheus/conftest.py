"""A fleet with traffic, a compiler at work, and a Prometheus that scrapes all of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from services.engines.device_probe import probe_device
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home
from tests.integration.fleet.onnx_files import write_linear, write_recipe, write_scaled
from tests.integration.prometheus.server import (
    Prometheus,
    free_port,
    prometheus,
    require_prometheus,
)

NUM_ASKED = 20
BATCH = 3
WIDTH = 6


@dataclass(frozen=True)
class Watched:
    """The fleet, its Prometheus, and where things are.

    Attributes:
        generation: of this machine.
        engine_digest: the engine that model `counted` serves with.
        agents: addresses of Ray's metrics agents.
    """

    fleet: LocalFleet
    prometheus: Prometheus
    generation: str
    engine_digest: str
    agents: list[str]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Model `counted` with an engine, `bare` without one; both asked; a build under way."""
    require_prometheus()
    folder = tmp_path_factory.mktemp("prometheus")
    with fleet_home() as fleet:
        _publish(fleet, folder)
        fleet.up()
        fleet.wait_ready("counted", 1)
        fleet.wait_ready("bare", 1)
        fleet.wait_until(lambda seen: bool(seen.metrics_addresses))
        agents = fleet.smelt("status")["replica_metrics_addresses"]
        compiler_port = free_port()
        targets = {
            "gateway": [fleet.running["metrics_address"]],
            "replicas": agents,
            "compiler": [f"127.0.0.1:{compiler_port}"],
        }
        with prometheus(folder, targets) as server:
            (replica,) = fleet.replicas("counted")
            _ask(fleet)
            generation = probe_device().generation
            # Prometheus begins to scrape some seconds after its start; a compiler is not long here.
            server.wait_for('up{job="gateway"} == 1')
            _compile(fleet, compiler_port, generation)
            yield Watched(fleet, server, generation, replica["engine_digest"], agents)


def _publish(fleet: LocalFleet, folder: Path) -> None:
    counted = write_scaled(folder / "counted.onnx", 2.0)
    recipe = write_recipe(folder / "recipe.yaml", 1, features=WIDTH)
    fleet.add("counted", counted, recipe)
    bare = write_scaled(folder / "bare.onnx", 4.0)
    fleet.smelt("models", "add", "bare", str(bare), "--recipe", str(recipe))
    linear = write_linear(folder / "compiled.onnx")
    recipe = write_recipe(folder / "compiled.yaml", 1)
    # Published in a store of its own, so that nobody serves what is only compiled.
    fleet.smelt("models", "add", "compiled", str(linear), "--recipe", str(recipe),
                "--store", str(fleet.home / "other"))  # fmt: skip


def _ask(fleet: LocalFleet) -> None:
    """Known numbers of good requests, wrong requests, and requests for nothing."""
    x_BF = np.ones((BATCH, WIDTH), np.float32)
    tensor = triton.InferInput("x", x_BF.shape, "FP32")
    tensor.set_data_from_numpy(x_BF)
    wrong = triton.InferInput("wrong", x_BF.shape, "FP32")
    wrong.set_data_from_numpy(x_BF)
    with triton.InferenceServerClient(fleet.address) as client:
        for model in ("counted", "bare"):
            for _ in range(NUM_ASKED):
                client.infer(model, [tensor])
        for model, given in (("counted", wrong), ("nope", tensor)):
            with pytest.raises(InferenceServerException):
                client.infer(model, [given])


def _compile(fleet: LocalFleet, port: int, generation: str) -> None:
    """One build that succeeds, one that its builder refuses, and a last one.

    That one keeps the endpoint open long enough for the two others to be scraped.
    """
    kinds = ("onnxruntime", "tensorrt", "openvino")
    arguments = [word for kind in kinds for word in ("--kind", kind)]
    arguments += ["--generation", generation, "--generation", "cuda-sm75"]
    arguments += ["--metrics-port", str(port), "--json"]
    arguments += ["--store-url", str(fleet.home / "other"), "--cache-dir", str(fleet.home / "c")]
    done = subprocess.run(
        [sys.executable, "-m", "compiler_worker", "build", "compiled", *arguments],
        env=dict(os.environ) | {"SMELT_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    outcomes = [record["outcome"] for record in json.loads(done.stdout)["records"]]
    assert sorted(outcomes) == ["failed", "proven", "proven"], done.stderr
