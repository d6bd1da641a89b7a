"""One real local fleet for all tests of this folder, with a Prometheus that scrapes it."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from tests.integration.fleet.local_fleet import LocalFleet, fleet_home, still_running
from tests.integration.fleet.onnx_files import (
    NUM_FEATURES,
    write_linear,
    write_noop,
    write_recipe,
    write_scaled,
)
from tests.integration.fleet.prometheus.server import is_prometheus_installed
from tests.process_server import environment_of_forks, forked_children

__all__ = ["forked_children"]  # a fixture

# Figures soon, so that a test need not wait: the defaults are for fleets that live longer.
QUICK = {
    "SMELT_SCRAPE_INTERVAL_S": "2",
    "SMELT_CONTROLLER_RESYNC_S": "2",
    "SMELT_CONTROLLER_SERVE_APPS": "true",
    "RAY_metrics_report_interval_ms": "4000",
    # Enough requests are traced that histograms have exemplars.
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_TRACES_SAMPLER": "traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.2",
}
# No engine is that near to a reference of higher precision: its proof must fail.
IMPOSSIBLE = "tolerances: {fp32: {rel_l2: 1.0e-30, max_abs: 1.0e-30, cosine_distance: 1.0e-30}}\n"
# TensorRT refuses FP32 there, and builds FP16, which nothing here can prove.
OLD_GENERATION = "cuda-sm75"
# What else this machine could build is not wanted: the figures of tests are known.
ONE_KIND = "kinds: [onnxruntime]\n"
ALSO_OLD = "kinds: [onnxruntime, tensorrt]\n"
SAMPLED = "sampling: {window_s: 2}\n"
ON_DEMAND = "residency: on-demand\n"


@dataclass(frozen=True)
class Served:
    """A fleet that is up, and the files of its models.

    Attributes:
        linear: the file that model `linear` was made from; 2 replicas.
        noop: that of `noop`; 1 replica.
    """

    fleet: LocalFleet
    linear: Path
    noop: Path


@pytest.fixture(scope="package")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The fleet, with all models ready; at its end nothing of it is left.

    `linear` and `noop` have engines. Where one of the tests runs that ask for them, `counted`,
    `bare` and `busy` are there too, for the figures of Prometheus.
    """
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    folder = tmp_path_factory.mktemp("models")
    environment = environment_of_forks()
    # Ray Serve imports applications of tests.
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[3]}"
    with fleet_home(**QUICK, **environment) as fleet:
        linear, noop = write_linear(folder / "linear.onnx"), write_noop(folder / "noop.onnx")
        fleet.add("linear", linear, write_recipe(folder / "linear.yaml", 2))
        fleet.add("noop", noop, write_recipe(folder / "noop.yaml", 1, tokens=300))
        num_replicas = {"linear": 2, "noop": 1}
        options: tuple[str, ...] = ("--http-port", "0")
        if "watched" in asked and is_prometheus_installed():
            num_replicas |= _publish_watched(fleet, folder)
            options += ("--observe", "--observe-port", "0")
        fleet.up(*options)
        for model, num in num_replicas.items():
            fleet.wait_ready(model, num)
        yield Served(fleet, linear, noop)
        processes = fleet.processes()
        fleet.down()
        assert still_running(processes) == []


def _publish_watched(fleet: LocalFleet, folder: Path) -> dict[str, int]:
    """`counted` has an engine, the proof of `bare` failed, `busy` has more; replicas by name."""
    counted = write_scaled(folder / "counted.onnx", 2.0)
    usual = write_recipe(folder / "counted.yaml", 1, features=NUM_FEATURES)
    _add(fleet, "counted", counted, usual, ONE_KIND)
    # A product that fp32 has to round.
    bare = write_scaled(folder / "bare.onnx", 1.1)
    strict = write_recipe(folder / "bare.yaml", 1, features=NUM_FEATURES)
    _add(fleet, "bare", bare, strict, ONE_KIND + IMPOSSIBLE)
    busy = write_linear(folder / "busy.onnx", seed=2)
    in_both = write_recipe(folder / "busy.yaml", 1, precisions="fp32, fp16")
    _add(fleet, "busy", busy, in_both, ALSO_OLD + SAMPLED + ON_DEMAND)
    old = ("--kind", "tensorrt", "--generation", OLD_GENERATION)
    assert _build(fleet, "counted") == ["proven"]
    assert _build(fleet, "bare") == ["proof_failed"]
    assert _build(fleet, "busy", "--kind", "onnxruntime") == ["proven"]
    assert _build(fleet, "busy", *old) == ["built", "failed"]
    return {"counted": 1, "bare": 1, "busy": 1}


def _add(fleet: LocalFleet, name: str, path: Path, recipe: Path, more: str) -> None:
    recipe.write_text(recipe.read_text() + more)
    fleet.smelt("models", "add", name, str(path), "--recipe", str(recipe))


def _build(fleet: LocalFleet, name: str, *wanted: str) -> list[str]:
    """Outcomes of builds, some of which are to fail."""
    done = fleet.smelt_process("build", name, *wanted, "--json")
    return sorted(record["outcome"] for record in json.loads(done.stdout)["records"])


@pytest.fixture
def fleet(served: Served) -> LocalFleet:
    """The fleet that is up."""
    return served.fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[triton.InferenceServerClient]:
    """An unmodified Triton client of the gateway."""
    with triton.InferenceServerClient(fleet.address) as client:
        yield client
