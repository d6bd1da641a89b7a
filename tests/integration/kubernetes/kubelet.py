"""Scheduler and kubelet of the emulated cluster: runs a Job's command where a node fits it."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.integration.kubernetes.emulated_cluster import JOBS, EmulatedCluster

ROOT = Path(__file__).resolve().parents[3]


def fitting_nodes(cluster: EmulatedCluster, job: Mapping[str, Any]) -> list[str]:
    """Names of the nodes that have all labels that the Job's Pod asks for."""
    wanted = job["spec"]["template"]["spec"]["nodeSelector"].items()
    nodes = cluster.objects("nodes")
    return [name for name, node in nodes.items() if wanted <= node["metadata"]["labels"].items()]


async def run_job(cluster: EmulatedCluster, name: str, environment: dict[str, str]) -> str:
    """Run a Job's only container as a process of this machine; its output."""
    path = f"{JOBS}/{name}"
    await cluster.patch(path, {"status": {"active": 1, "ready": 1}})
    (container,) = cluster.objects("jobs")[name]["spec"]["template"]["spec"]["containers"]
    # Its first word is `python`: this one here.
    command: list[str] = container["command"][1:] + container["args"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    condition = {"type": "Failed" if process.returncode else "Complete", "status": "True"}
    status = {"active": 0, "ready": 0, "conditions": [condition]}
    await cluster.patch(path, {"status": status})
    return output.decode()
