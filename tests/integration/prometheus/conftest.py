"""A fleet with traffic and builds behind it, observed by `smelt up --observe`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.engines.device_probe import probe_device
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home, still_running
from tests.integration.fleet.onnx_files import FEATURES, write_linear, write_recipe, write_scaled
from tests.integration.prometheus.server import Prometheus, require_prometheus
from tests.integration.prometheus.traffic import WIDTH, ask_known_numbers, endless

# Figures soon, so that a test need not wait: the defaults are for fleets that live longer.
QUICK = {
    "SMELT_SCRAPE_INTERVAL_S": "0.5",
    "SMELT_CONTROLLER_RESYNC_S": "2",
    "RAY_metrics_report_interval_ms": "2000",
    # Every request is traced, so that histograms have exemplars.
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_TRACES_SAMPLER": "always_on",
}
# No engine is that near to a reference of higher precision: its proof must fail.
IMPOSSIBLE = "tolerances: {fp32: {rel_l2: 1.0e-30, max_abs: 1.0e-30, cosine_distance: 1.0e-30}}\n"
# TensorRT refuses FP32 there, and builds FP16, which nothing here can prove.
OLD_GENERATION = "cuda-sm75"
# What else this machine could build is not wanted: the figures below are known.
ONE_KIND = "kinds: [onnxruntime]\n"
ALSO_OLD = "kinds: [onnxruntime, tensorrt]\nprecisions: [fp32, fp16]\n"


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


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Model `counted` with an engine, `bare` whose proof failed, `busy` that is always asked."""
    require_prometheus()
    with pytest.MonkeyPatch.context() as environment, fleet_home() as fleet:
        for name, value in QUICK.items():
            environment.setenv(name, value)
        _publish(fleet, tmp_path_factory.mktemp("models"))
        fleet.up("--observe", "--observe-port", "0")
        for model in ("counted", "bare", "busy"):
            fleet.wait_ready(model, 1)
        fleet.wait_until(lambda seen: bool(seen.metrics_addresses))
        agents = fleet.smelt("status")["replica_metrics_addresses"]
        (replica,) = fleet.replicas("counted")
        ask_known_numbers(fleet.address)
        with endless(fleet.address, "busy", FEATURES):
            yield Watched(
                fleet,
                Prometheus(fleet.running["prometheus_url"]),
                probe_device().generation,
                replica["engine_digest"],
                agents,
            )
        processes = fleet.processes()
        fleet.down()
        assert still_running(processes) == []


def _publish(fleet: LocalFleet, folder: Path) -> None:
    counted = write_scaled(folder / "counted.onnx", 2.0)
    usual = write_recipe(folder / "counted.yaml", 1, features=WIDTH)
    _add(fleet, "counted", counted, usual, ONE_KIND)
    # A product that fp32 has to round.
    bare = write_scaled(folder / "bare.onnx", 1.1)
    strict = write_recipe(folder / "bare.yaml", 1, features=WIDTH)
    _add(fleet, "bare", bare, strict, ONE_KIND + IMPOSSIBLE)
    busy = write_linear(folder / "busy.onnx")
    _add(fleet, "busy", busy, write_recipe(folder / "busy.yaml", 1), ALSO_OLD)
    old = ("--kind", "tensorrt", "--generation", OLD_GENERATION)
    assert _build(fleet, "counted") == ["proven"]
    assert _build(fleet, "bare") == ["proof_failed"]
    assert _build(fleet, "busy", "--kind", "onnxruntime") == ["proven"]
    assert _build(fleet, "busy", *old) == ["built", "failed"]


def _add(fleet: LocalFleet, name: str, path: Path, recipe: Path, more: str) -> None:
    recipe.write_text(recipe.read_text() + more)
    fleet.smelt("models", "add", name, str(path), "--recipe", str(recipe))


def _build(fleet: LocalFleet, name: str, *wanted: str) -> list[str]:
    """Outcomes of builds, some of which are to fail."""
    done = fleet.smelt_process("build", name, *wanted, "--json")
    return sorted(record["outcome"] for record in json.loads(done.stdout)["records"])
