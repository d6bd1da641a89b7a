"""What the manifests grant the controller is what it asks for."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import BuildTask
from services.controller.platform.kubernetes.jobs import KubernetesJobs
from tests.integration.kubernetes.conftest import WatchedNodes
from tests.integration.kubernetes.emulated_cluster import JOBS, Asked, EmulatedCluster, gpu_node

TASK = BuildTask(
    name="build-a1",
    model="m",
    version=1,
    node_class=NodeClass(generation="cuda-sm90"),
    is_anywhere=True,
)


def _granted(root: Path) -> frozenset[Asked]:
    """All rules of the controller's roles; they have one subject and one namespace."""
    documents = yaml.safe_load_all((root / "k8s/base/controller-access.yaml").read_text())
    return frozenset(
        Asked(verb, group, resource)
        for document in documents
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


async def test_the_granted_verbs_are_those_that_are_asked_for(
    cluster: EmulatedCluster,
    watch_nodes: Callable[..., WatchedNodes],
    make_jobs: Callable[[EmulatedCluster], KubernetesJobs],
    pytestconfig: pytest.Config,
) -> None:
    cluster.emulator.granted = _granted(pytestconfig.rootpath)
    nodes = watch_nodes(cluster)
    jobs = make_jobs(cluster)
    await asyncio.to_thread(jobs.launch, TASK)
    await asyncio.to_thread(jobs.launch, TASK)
    await asyncio.to_thread(jobs.statuses)
    await asyncio.to_thread(jobs.forget, TASK.name)
    await asyncio.to_thread(jobs.launch, TASK)
    failed = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    await cluster.patch(f"{JOBS}/{TASK.name}", failed)
    await asyncio.to_thread(jobs.forget, TASK.name)
    await cluster.create("/api/v1/nodes", gpu_node("a", 9, 0))
    await nodes.until_counts(sm90=1)
    assert cluster.emulator.asked == cluster.emulator.granted
