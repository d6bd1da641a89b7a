"""A node appears and its engines are built: loop, source and launcher together."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler_worker.devices import local_devices, main_device
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.platform.kubernetes.jobs import KubernetesJobs
from services.controller.platform.kubernetes.nodes import KubernetesNodes
from tests.conformance.tiny_model import draw_inputs, save_master, tiny_model
from tests.integration.compiler.conftest import RECIPE
from tests.integration.kubernetes.conftest import FORGIVING
from tests.integration.kubernetes.emulated_cluster import NAMESPACE, EmulatedCluster, gpu_node
from tests.integration.kubernetes.kubelet import fitting_nodes, run_job

pytestmark = pytest.mark.usefixtures("forked_children")

NODES = "/api/v1/nodes"
# Of a build in a process of its own; reached by nothing but a fault.
LIMIT_S = 240.0
# Only news of the cluster, and ends of Jobs, make the loop look.
PACE = BuildPace(resync_s=3600, poll_s=0.05, nodes_gone_after_s=0.1)
StartController = Callable[[], contextlib.AbstractAsyncContextManager[None]]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """A store that holds the tiny model."""
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    path = save_master(tiny_model(), tmp_path)
    samples = tmp_path / "samples.npz"
    np.savez(samples, allow_pickle=False, **draw_inputs(32, 12))
    master = open_master(OnnxFile(path=path), tmp_path / "master", lambda line: None)
    registry.add_model_version(
        name="tiny",
        master=registry.publish_master(master),
        recipe=RECIPE.model_copy(update={"kinds": (EngineKind.ONNXRUNTIME,)}),
        source="tiny.onnx",
        source_fingerprint="0",
        samples=samples,
    )
    return registry


@pytest.fixture
def start_controller(
    cluster: EmulatedCluster,
    registry: Registry,
    make_jobs: Callable[[EmulatedCluster], KubernetesJobs],
) -> StartController:
    """The controller's build half; killed when the context ends, with nothing put in order."""

    @contextlib.asynccontextmanager
    async def controller() -> AsyncIterator[None]:
        event_loop = asyncio.get_running_loop()
        nodes = KubernetesNodes(
            cluster.config, NAMESPACE, lambda: _kick(event_loop, builds), FORGIVING
        )
        builds = BuildLoop(registry, nodes, make_jobs(cluster), FleetState("", 0), pace=PACE)
        nodes.start()
        running = asyncio.create_task(builds.run())
        try:
            yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await asyncio.to_thread(nodes.stop)

    return controller


def _kick(event_loop: asyncio.AbstractEventLoop, builds: BuildLoop) -> None:
    event_loop.call_soon_threadsafe(builds.enqueue)


def _selectors(cluster: EmulatedCluster) -> list[dict[str, str]]:
    selectors = [_pod(job)["nodeSelector"] for job in cluster.objects("jobs").values()]
    return [{key: s[key] for key in s if key.startswith("nvidia.com/")} for s in selectors]


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def _asks_for(major: int, minor: int) -> list[dict[str, str]]:
    prefix = "nvidia.com/gpu.compute."
    return [{f"{prefix}major": str(major), f"{prefix}minor": str(minor)}]


async def test_a_gpu_node_appears_is_relabelled_and_goes(
    cluster: EmulatedCluster, start_controller: StartController
) -> None:
    async with start_controller():
        await cluster.create(NODES, gpu_node("a", 9, 0))
        await cluster.until(lambda: _selectors(cluster) == _asks_for(9, 0), LIMIT_S)
        (job,) = cluster.objects("jobs").values()
        assert fitting_nodes(cluster, job) == []  # not amd64
        labels = gpu_node("a", 8, 0, kubernetes_io__arch="amd64")["metadata"]["labels"]
        await cluster.patch(f"{NODES}/a", {"metadata": {"labels": labels}})
        await cluster.until(lambda: _selectors(cluster) == _asks_for(8, 0), LIMIT_S)
        (job,) = cluster.objects("jobs").values()
        assert _pod(job)["containers"][0]["args"][:2] == ["build", "tiny"]
        assert fitting_nodes(cluster, job) == ["a"]
        await cluster.delete(f"{NODES}/a")
        await cluster.until(lambda: _selectors(cluster) == [], LIMIT_S)


async def test_a_controller_that_is_started_again_finds_its_jobs(
    cluster: EmulatedCluster, start_controller: StartController
) -> None:
    await cluster.create(NODES, gpu_node("a", 9, 0))
    async with start_controller():
        await cluster.until(lambda: len(cluster.objects("jobs")) == 1, LIMIT_S)
    (name,) = cluster.objects("jobs")
    async with start_controller():
        # The Job of a second node shows that the loop has passed, and left the first alone.
        await cluster.create(NODES, gpu_node("b", 12, 0))
        await cluster.until(lambda: len(cluster.objects("jobs")) == 2, LIMIT_S)
        assert name in cluster.objects("jobs")


async def test_a_node_appears_and_its_engines_are_built_and_proven(
    cluster: EmulatedCluster,
    start_controller: StartController,
    registry: Registry,
    tmp_path: Path,
) -> None:
    """With the real compiler in the Job; this machine is the node."""
    here = NodeClass.from_facts(main_device(local_devices()))
    labels = here.labels() | {"kubernetes.io/arch": "amd64"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    async with start_controller():
        node = {"metadata": {"name": "here", "labels": labels}, "status": ready}
        await cluster.create(NODES, node)
        await cluster.until(lambda: len(cluster.objects("jobs")) == 1, LIMIT_S)
        ((name, job),) = cluster.objects("jobs").items()
        assert fitting_nodes(cluster, job) == ["here"]
        output = await run_job(cluster, name, _environment(tmp_path))
        await cluster.until(lambda: cluster.objects("jobs") == {}, LIMIT_S)
    assert [e.proof.outcome for e in registry.engines()] == [ProofOutcome.PASSED], output


def _environment(tmp_path: Path) -> dict[str, str]:
    """What the template's ConfigMaps would set."""
    return os.environ | {
        "SMELT_STORE_URL": str(tmp_path / "store"),
        "SMELT_CACHE_DIR": str(tmp_path / "worker-cache"),
        "SMELT_BENCHMARK_S": "0",
        "SMELT_BENCHMARK_ITERATIONS": "3",
        "SMELT_NUM_THREADS": "1",
    }
