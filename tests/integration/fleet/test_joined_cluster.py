"""A fleet on a Ray cluster that goes on: what stays when it is killed, and what when it stops."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.node_class import NodeClass
from services.engines.device.device_probe import probe_device
from tests.integration.fleet.local_fleet import WAIT_S, LocalFleet, fleet_home, still_running
from tests.integration.fleet.onnx_files import write_noop, write_recipe
from tests.integration.hardware_change.cluster_keeper import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

QUICK = {"SMELT_CONTROLLER_RESYNC_S": "2", "SMELT_CONTROLLER_SERVE_APPS": "true"}
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

# Somebody else applies a declarative config, which ends the applications of the one before; waits
# until those are back beside it, and takes its own away.
DECLARED = """
import sys, time
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
path, args = "tests.integration.fleet.chat_app:build", {"name": "other", "words": "x"}
app = {"name": "other", "route_prefix": "/other", "import_path": path, "args": args}
_get_global_client().deploy_apps(ServeDeploySchema(applications=[app]))
while True:
    found = {name: each.status.value for name, each in serve.status().applications.items()}
    if all(found.get(name) == "RUNNING" for name in ("other", *sys.argv[2:])):
        break
    time.sleep(0.2)  # Serve has no event of it
serve.delete("other")
"""


def run(script: str, *arguments: str) -> str:
    """Run a script in a process that joins the cluster."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    ).stdout


def actors(address: str, *begun: str) -> list[str]:
    """Names of the cluster's actors, after build tasks of these names were begun."""
    printed = run(ACTORS, address, *begun)
    found: list[str] = json.loads(printed.splitlines()[-1])
    return found


def asked_at(fleet: LocalFleet) -> str:
    """Where the external model is asked, once it is ready."""
    seen = fleet.wait_until(
        lambda seen: any(m.external_json and m.state == "READY" for m in seen.models)
    )
    (model,) = (m for m in seen.models if m.external_json)
    return ExternalModel.from_json(model.external_json).url


def test_replicas_outlive_a_killed_fleet_and_nothing_outlives_one_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the cluster's workers, which import an application of tests.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    labels = NodeClass.from_facts(probe_device()).labels()
    with ray_cluster(labels) as cluster, fleet_home(**QUICK) as fleet:
        recipe = write_recipe(tmp_path / "noop.yaml", 1, tokens=8)
        fleet.add("noop", write_noop(tmp_path / "noop.onnx"), recipe)
        fleet.up("--ray-address", cluster.address)
        fleet.wait_ready("noop", 1)
        (replica,) = fleet.replicas("noop")
        args = tmp_path / "args.yaml"
        args.write_text("{name: chat, words: hi}")
        source = "ray+openai://tests.integration.fleet.chat_app:build"
        fleet.smelt("models", "add", "chat", source, "--args", str(args))
        chat = asked_at(fleet)
        refusal = pytest.raises(AssertionError, match="one fleet at a time")
        with fleet_home(**QUICK) as other, refusal:
            other.up("--ray-address", cluster.address)
        assert asked_at(fleet) == chat
        own, controller = fleet.processes(), fleet.running["controller"]
        os.kill(fleet.running["supervisor_pid"], signal.SIGKILL)
        assert still_running(own) == []
        # It is at the former address, where the replica looks for it.
        fleet.up("--ray-address", cluster.address)
        assert fleet.running["controller"] == controller
        fleet.wait_ready("noop", 1)
        assert asked_at(fleet) == chat
        (again,) = fleet.replicas("noop")
        assert (again["process_id"], again["addresses"]) == (
            replica["process_id"],
            replica["addresses"],
        )
        assert Path(again["addresses"][0].removeprefix("unix:")).is_socket()
        assert "build-x" in actors(cluster.address, "build-x")
        # Somebody else's application comes and goes.
        run(DECLARED, cluster.address, "smelt-external:chat:1")
        assert asked_at(fleet) == chat
        living = psutil.Process(replica["process_id"])
        fleet.down()
        assert still_running([living]) == []
        assert actors(cluster.address) == []
        assert not list((fleet.home / "run").glob("*.sock"))
