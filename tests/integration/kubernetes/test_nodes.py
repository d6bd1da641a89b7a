"""Nodes of an emulated cluster come, change, go; the pools follow."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from services.contracts.errors import NotReadyError
from tests.integration.kubernetes.conftest import FORGIVING, WatchedNodes, counts
from tests.integration.kubernetes.emulated_cluster import EmulatedCluster, gpu_node

WatchNodes = Callable[..., WatchedNodes]
NODES = "/api/v1/nodes"
RAY_SERVICES = "/apis/ray.io/v1/namespaces/smelt/rayservices"


def _ray_service(*groups: tuple[str, str]) -> dict[str, object]:
    specs = [
        {"groupName": name, "minReplicas": 0, "labels": {"smelt.dev/generation": generation}}
        for name, generation in groups
    ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "smelt", "namespace": "smelt"},
        "spec": {"rayClusterConfig": {"workerGroupSpecs": specs}},
    }


async def test_a_node_that_appears_is_a_pool(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    nodes = watch_nodes(cluster)
    await nodes.until_counts()
    labels = {"nvidia.com__gpu_product": "NVIDIA-H200"}
    await cluster.create(NODES, gpu_node("a", 9, 0, **labels))
    (pool,) = await nodes.until_counts(sm90=1)
    assert (pool.source, pool.names) == ("kubernetes", ("a",))
    assert pool.node_class.device == "NVIDIA-H200"


async def test_what_is_there_before_the_controller_is_found(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    await cluster.create(NODES, gpu_node("b", 9, 0))
    await cluster.create(NODES, {"kind": "Node", "metadata": {"name": "cpu"}})
    # Not held back: a controller that starts has to know its fleet.
    nodes = watch_nodes(cluster, replace(FORGIVING, settle_s=3600))
    await nodes.until_counts(sm90=2)


async def test_a_relabelled_node_is_looked_at_again(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    nodes = watch_nodes(cluster)
    await nodes.until_counts(sm90=1)
    labels = gpu_node("a", 8, 0)["metadata"]["labels"]
    await cluster.patch(f"{NODES}/a", {"metadata": {"labels": labels}})
    await nodes.until_counts(sm80=1)


async def test_a_cordoned_node_stays_known_and_does_not_count(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    nodes = watch_nodes(cluster)
    await nodes.until_counts(sm90=1)
    await cluster.patch(f"{NODES}/a", {"spec": {"unschedulable": True}})
    (pool,) = await nodes.until_counts(sm90=0)
    assert pool.names == ("a (cordoned)",)
    await cluster.patch(f"{NODES}/a", {"spec": {"unschedulable": False}})
    await nodes.until_counts(sm90=1)


async def test_a_node_that_goes_is_gone(cluster: EmulatedCluster, watch_nodes: WatchNodes) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    nodes = watch_nodes(cluster)
    await nodes.until_counts(sm90=1)
    await cluster.delete(f"{NODES}/a")
    await nodes.until_counts()


async def test_a_change_that_lasts_is_published_when_its_time_has_come(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    nodes = watch_nodes(cluster, replace(FORGIVING, settle_s=0.05))
    await nodes.until_counts()
    await cluster.create(NODES, gpu_node("a", 9, 0))
    await nodes.until_counts(sm90=1)


async def test_worker_groups_at_zero_are_pools(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.create(RAY_SERVICES, _ray_service(("h", "cuda-sm90"), ("b", "cuda-sm120")))
    nodes = watch_nodes(cluster)
    pools = await nodes.until_counts(sm90=0, sm120=0)
    assert {p.names for p in pools} == {("smelt/h",), ("smelt/b",)}
    await cluster.create(NODES, gpu_node("a", 9, 0))
    pools = await nodes.until_counts(sm90=1, sm120=0)
    assert {p.names for p in pools} == {("a",), ("smelt/b",)}


async def test_a_cluster_without_kuberay_has_nodes_all_the_same(watch_nodes: WatchNodes) -> None:
    cluster = EmulatedCluster(has_ray=False)
    async with cluster.emulator:
        await cluster.start()
        nodes = watch_nodes(cluster)
        await nodes.until_counts()
        await cluster.create(NODES, gpu_node("a", 9, 0))
        await nodes.until_counts(sm90=1)
        await cluster.stop()


async def test_what_is_installed_later_is_found_at_the_resync(watch_nodes: WatchNodes) -> None:
    cluster = EmulatedCluster(has_ray=False)
    async with cluster.emulator:
        await cluster.start()
        nodes = watch_nodes(cluster, replace(FORGIVING, resync_s=0.05))
        await nodes.until_counts()
        await cluster.create(RAY_SERVICES, _ray_service(("h", "cuda-sm90")))
        await nodes.until_counts(sm90=0)
        await cluster.stop()


async def test_it_is_not_ready_before_the_cluster_was_read(
    cluster: EmulatedCluster, watch_nodes: WatchNodes
) -> None:
    await cluster.stop()
    nodes = watch_nodes(cluster)
    with pytest.raises(NotReadyError, match="not known yet"):
        nodes.source.pools()
    await cluster.start()
    await nodes.until_counts()


async def test_a_long_silence_is_said(cluster: EmulatedCluster, watch_nodes: WatchNodes) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    # Any silence is too long, even none.
    nodes = watch_nodes(cluster, replace(FORGIVING, lost_after_s=-1))
    await nodes.first()
    with pytest.raises(NotReadyError, match="no answer of the Kubernetes cluster for"):
        nodes.source.pools()


async def test_a_listener_that_fails_stops_nothing(
    cluster: EmulatedCluster, watch_nodes: WatchNodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = watch_nodes(cluster)
    await nodes.until_counts()
    nodes.fault = RuntimeError("boom")
    await cluster.create(NODES, gpu_node("a", 9, 0))
    await nodes.until_counts(sm90=1)
    await cluster.create(NODES, gpu_node("b", 9, 0))
    await nodes.until_counts(sm90=2)
    assert "a listener failed" in caplog.text


async def test_it_ends_with_its_thread(cluster: EmulatedCluster, watch_nodes: WatchNodes) -> None:
    nodes = watch_nodes(cluster)
    await nodes.until_counts()
    assert any(thread.name == "kubernetes-nodes" for thread in threading.enumerate())
    await asyncio.to_thread(nodes.source.stop)
    assert all(thread.name != "kubernetes-nodes" for thread in threading.enumerate())
    assert counts(nodes.source.pools()) == {}


async def test_what_the_ray_service_asks_for_is_known_and_followed(
    cluster: EmulatedCluster, watch_nodes: Callable[..., WatchedNodes]
) -> None:
    nodes = watch_nodes(cluster)
    await nodes.first()
    assert nodes.source.num_replicas_wanted("m", 1) == 0
    service = _ray_service(("h", "cuda-sm90"))
    application = "- {name: a, args: {model: m, version: 1}, deployments: [{num_replicas: 3}]}"
    service["spec"]["serveConfigV2"] = f"applications:\n{application}"  # type: ignore[index]
    await cluster.create(RAY_SERVICES, service)
    await nodes.until(lambda _: nodes.source.num_replicas_wanted("m", 1) == 3)
