"""A fleet on a Ray cluster that goes on: what stays when it is killed, and what when it stops."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.contracts.hardware.node_class import NodeClass
from services.engines.device.device_probe import probe_device
from tests.integration.fleet.local_fleet import WAIT_S, fleet_home, still_running
from tests.integration.fleet.onnx_files import write_noop, write_recipe
from tests.integration.hardware_change.cluster_keeper import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Says which named actors there are; with a name it first begins a build task of that name.
ACTORS = """
import json, sys
import ray
from services.controller.platform.ray.ray_tasks import NAMESPACE
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
for name in sys.argv[2:]:
    task = ray.remote(num_cpus=0)(type("Task", (), {}))
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
    ray.get(task.options(**options).remote().__ray_ready__.remote())
print(json.dumps([each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]))
"""


def actors(address: str, *begun: str) -> list[str]:
    """Names of the cluster's actors, after build tasks of these names were begun."""
    done = subprocess.run(
        [sys.executable, "-c", ACTORS, address, *begun],
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_replicas_outlive_a_killed_fleet_and_nothing_outlives_one_that_stops(
    tmp_path: Path,
) -> None:
    labels = NodeClass.from_facts(probe_device()).labels()
    with ray_cluster(labels) as cluster, fleet_home() as fleet:
        recipe = write_recipe(tmp_path / "noop.yaml", 1, tokens=8)
        fleet.add("noop", write_noop(tmp_path / "noop.onnx"), recipe)
        fleet.up("--ray-address", cluster.address)
        fleet.wait_ready("noop", 1)
        (replica,) = fleet.replicas("noop")
        own, controller = fleet.processes(), fleet.running["controller"]
        os.kill(fleet.running["supervisor_pid"], signal.SIGKILL)
        assert still_running(own) == []
        # It is at the former address, where the replica looks for it.
        fleet.up("--ray-address", cluster.address)
        assert fleet.running["controller"] == controller
        fleet.wait_ready("noop", 1)
        (again,) = fleet.replicas("noop")
        assert (again["process_id"], again["addresses"]) == (
            replica["process_id"], replica["addresses"],
        )  # fmt: skip
        assert Path(again["addresses"][0].removeprefix("unix:")).is_socket()
        assert "build-x" in actors(cluster.address, "build-x")
        living = psutil.Process(replica["process_id"])
        fleet.down()
        assert still_running([living]) == []
        assert actors(cluster.address) == []
        assert not list((fleet.home / "run").glob("*.sock"))
