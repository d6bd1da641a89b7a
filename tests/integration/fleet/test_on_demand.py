"""Three on-demand models on a GPU with room for two, which a Ray has in name alone."""

import json
import os
import signal
import time
from collections.abc import Iterator
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home, ready_in
from tests.integration.fleet.onnx_files import NUM_FEATURES, write_recipe, write_scaled
from tests.integration.hardware_change.cluster_keeper import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FACTORS = {"a": 2.0, "b": 3.0, "c": 4.0}
GENERATION = "cuda-sm90"
RECIPE = "residency: on-demand\ngpu_share: 0.4\n"
DEADLINE_S = 100.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Its models are there, and the last one without a replica."""
    folder = tmp_path_factory.mktemp("models")
    labels = NodeClass(generation=GENERATION, memory_gib=80).labels()
    with (
        ray_cluster(labels | {SIMULATED_LABEL: GENERATION}, num_gpus=1) as cluster,
        fleet_home(SMELT_GATEWAY_HOLD_S=str(DEADLINE_S)) as fleet,
    ):
        fleet.up("--ray-address", cluster.address, "--gateway-workers", "2")
        for name, factor in FACTORS.items():
            recipe = write_recipe(folder / f"{name}.yaml", 1, features=NUM_FEATURES)
            recipe.write_text(recipe.read_text() + RECIPE)
            path = write_scaled(folder / f"{name}.onnx", factor)
            fleet.smelt("models", "add", name, str(path), "--recipe", str(recipe))
            fleet.wait_until(lambda seen, name=name: state_of(seen, name) in ("READY", "STANDBY"))
        yield fleet


def state_of(seen: pb.FleetSnapshot, name: str) -> str:
    """Of a model, once its deployment has settled."""
    return next((model.state for model in seen.models if model.name == name), "")


def ask(fleet: LocalFleet, name: str, timeout_s: float = DEADLINE_S) -> float:
    """The seconds until a right answer."""
    x_BF = np.random.default_rng(0).standard_normal((2, NUM_FEATURES)).astype(np.float32)
    tensor = triton.InferInput("x", list(x_BF.shape), "FP32")
    tensor.set_data_from_numpy(x_BF)
    began_s = time.monotonic()
    with triton.InferenceServerClient(fleet.address) as client:
        found = client.infer(name, [tensor], client_timeout=timeout_s).as_numpy("y")
    assert np.array_equal(found, x_BF * np.float32(FACTORS[name]))
    return time.monotonic() - began_s


def loaded(fleet: LocalFleet) -> str:
    """Names of models with a replica, once nothing changes."""
    moving = {"LOADING", "UNLOADING"}
    seen = fleet.wait_until(lambda seen: not moving & {model.state for model in seen.models})
    return "".join(name for name in FACTORS if ready_in(seen, name))


def misses(fleet: LocalFleet) -> float:
    """Requests that had a model loaded."""
    with urlopen(f"http://{fleet.running['metrics_address']}/metrics", timeout=30) as page:
        lines: list[str] = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith("smelt_on_demand_misses_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def test_each_is_answered_in_turn_and_the_least_recently_used_leaves(fleet: LocalFleet) -> None:
    assert loaded(fleet) == "ab"
    before = misses(fleet)
    turns = {"c": "bc", "a": "ac", "b": "ab"}
    for name, expected in turns.items():
        print(f"{name}: {ask(fleet, name):.1f} s")
        assert loaded(fleet) == expected
    assert misses(fleet) - before == len(turns)
    why = json.dumps(fleet.smelt("status")["models"])
    assert "on demand: not loaded; its next request loads it" in why
    ask(fleet, "b")
    ask(fleet, "a")
    assert misses(fleet) - before == len(turns)


def test_a_deadline_that_is_shorter_than_the_load_is_kept_and_the_load_goes_on(
    fleet: LocalFleet,
) -> None:
    (absent,) = set(FACTORS) - set(loaded(fleet))
    with pytest.raises(InferenceServerException) as caught:
        ask(fleet, absent, timeout_s=0.3)
    assert "DEADLINE_EXCEEDED" in str(caught.value.status())
    fleet.wait_until(lambda seen: bool(ready_in(seen, absent)))


def test_a_controller_that_is_killed_meanwhile_loses_no_request(fleet: LocalFleet) -> None:
    (absent,) = set(FACTORS) - set(loaded(fleet))
    os.kill(fleet.child("services.controller").pid, signal.SIGKILL)
    print(f"{absent}: {ask(fleet, absent):.1f} s")
    for name in FACTORS:
        ask(fleet, name)
