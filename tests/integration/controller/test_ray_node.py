"""The Ray of one host: what its start does not wait for."""

import json
import subprocess
import sys

_START = """
import json
from pathlib import Path

import ray

from services.controller.ray_node import RayNodeSettings, start_node

found = {}

def look(node):
    found["is_driver"] = ray.is_initialized()
    found["session"] = node.get_session_dir_path()

start_node(RayNodeSettings(num_cpus=1), look)
(node,) = ray.nodes()
(path,) = Path(found["session"]).glob("dashboard_agent_listen_port_*")
found["ports"] = [node["MetricsExportPort"], node["RuntimeEnvAgentPort"], int(path.read_text())]

@ray.remote(runtime_env={"env_vars": {"FROM": "the agent"}})
def asked():
    import os

    return os.environ["FROM"]

found["answer"] = ray.get(asked.remote())
print(json.dumps(found))
"""


def test_a_node_is_up_before_its_agents_and_its_first_driver_are() -> None:
    command = [sys.executable, "-c", _START]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert not found["is_driver"]
    assert all(20_000 <= port < 30_000 for port in found["ports"])
    assert len(set(found["ports"])) == len(found["ports"])
    assert found["answer"] == "the agent"
