"""Manifests and controller against a real API server; skipped without KUBEBUILDER_ASSETS."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.contracts.errors import NotReadyError
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import BuildTask, NodePool, TaskState
from services.controller.platform.kubernetes.job_template import read_template
from services.controller.platform.kubernetes.jobs import KubernetesJobs
from services.controller.platform.kubernetes.nodes import KubernetesNodes
from services.controller.platform.kubernetes.servers import KubernetesServers
from services.controller.platform.kubernetes.watch import WatchTiming
from tests.integration.api_server.control_plane import LIMIT_S, NAMESPACE, ControlPlane
from tests.integration.k8s.rendering import K8S, OVERLAYS
from tests.integration.k8s.schemas import DEFINITIONS
from tests.integration.kubernetes.emulated_cluster import gpu_node
from tests.kubernetes_manifest import documents, external_server

TASK = BuildTask(
    name="build-m-1",
    model="m",
    version=1,
    node_class=NodeClass(generation="cuda-sm90"),
    is_anywhere=False,
)
NO_PODS = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: no-pods, namespace: smelt}
spec: {hard: {pods: "0"}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with the definitions of custom resources."""
    if not DEFINITIONS.is_dir():
        pytest.skip(f"{DEFINITIONS} is absent: SMELT_TEST_CRDS names the definitions")
    with ControlPlane(tmp_path_factory.mktemp("cluster")) as started:
        started.kubectl_run("apply", "--server-side", "-f", str(DEFINITIONS))
        started.kubectl_run("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield started


@pytest.fixture
def access(cluster: ControlPlane) -> ControlPlane:
    """The same, with the namespace and rights of the manifests."""
    for name in ("namespace", "controller-access"):
        file = str(K8S / "base" / f"{name}.yaml")
        cluster.kubectl_run("apply", "--server-side", "-n", NAMESPACE, "-f", file)
    cluster.until_allowed("create", "jobs")
    cluster.until_allowed("list", "nodes")
    return cluster


@pytest.fixture
def jobs(access: ControlPlane) -> Iterator[KubernetesJobs]:
    template = read_template(K8S / "base/builder-job.yaml")
    made = KubernetesJobs(access.controller, NAMESPACE, template)
    yield made
    access.kubectl_run("delete", "jobs", "--all", "-n", NAMESPACE, "--wait=false")
    made.close()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_taken_whole_and_once(cluster: ControlPlane, overlay: str) -> None:
    """Unknown fields are errors, and what was applied needs no second time."""
    folder = str(K8S / "overlays" / overlay)
    apply = ("apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", folder)
    assert "Warning" not in cluster.kubectl_run(*apply)
    cluster.kubectl_run(*apply)
    assert cluster.kubectl_run("diff", "--server-side", "--force-conflicts", "-k", folder) == ""


def test_a_job_is_launched_and_forgotten_with_the_rights_of_the_manifests(
    jobs: KubernetesJobs,
) -> None:
    jobs.launch(TASK)
    jobs.launch(TASK)
    (status,) = jobs.statuses().values()
    assert status.state is TaskState.WAITING
    jobs.forget(TASK.name)
    assert jobs.statuses() == {}


def test_a_quota_that_refuses_the_pod_is_the_reason_of_the_wait(
    access: ControlPlane, jobs: KubernetesJobs
) -> None:
    access.start_controllers("job-controller", "resourcequota-controller")
    access.kubectl_run("apply", "-f", "-", text=NO_PODS)
    used = "jsonpath={.status.hard.pods}=0"
    wait = ("wait", f"--for={used}", "resourcequota/no-pods", "-n", NAMESPACE, "--timeout=60s")
    access.kubectl_run(*wait)
    jobs.launch(TASK)
    refusals = ("get", "events", "-n", NAMESPACE, "--field-selector=reason=FailedCreate")
    assert access.first_line(*refusals, "--watch", "-o", "name")
    assert "exceeded quota: no-pods" in jobs.statuses()[TASK.name].detail
    access.kubectl_run("delete", "resourcequota", "no-pods", "-n", NAMESPACE)


@pytest.fixture
def servers(access: ControlPlane) -> Iterator[KubernetesServers]:
    file = str(K8S / "components/model-servers/access.yaml")
    access.kubectl_run("apply", "--server-side", "-f", file)
    access.until_allowed("create", "deployments.apps")
    access.until_allowed("delete", "services")
    with closing(KubernetesServers(access.controller, NAMESPACE)) as made:
        yield made


def test_a_model_server_is_created_explained_and_deleted_with_the_rights_of_the_component(
    access: ControlPlane, servers: KubernetesServers
) -> None:
    access.start_controllers("deployment-controller", "replicaset-controller")
    manifest = documents()
    manifest[0]["spec"]["template"]["spec"]["hostNetwork"] = True
    model = external_server(manifest=manifest)
    for _ in range(2):
        assert servers.apply([model])
    refused = ("wait", "--for=condition=ReplicaFailure", "deployment/vllm-1", "--timeout=60s")
    access.kubectl_run(*refused, "-n", NAMESPACE)
    with pytest.raises(NotReadyError, match='violates PodSecurity "restricted'):
        servers.find(model)
    servers.apply([])
    assert not servers.apply([])


class Watched:
    """Nodes as the controller sees them, and a wait for them."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._changed, self._loop = asyncio.Event(), asyncio.get_running_loop()
        timing = WatchTiming(settle_s=0, retry_s=0.05, retry_max_s=0.1)
        self.nodes = KubernetesNodes(cluster.controller, NAMESPACE, self._notify, timing)

    def _notify(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def until(self, is_so: Callable[[list[NodePool]], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                self._changed.clear()
                try:
                    if is_so(self.nodes.pools()):
                        return
                except NotReadyError:
                    pass  # not read yet
                await self._changed.wait()


@pytest.fixture
async def watched(access: ControlPlane) -> AsyncIterator[Watched]:
    made = Watched(access)
    made.nodes.start()
    yield made
    await asyncio.to_thread(made.nodes.stop)


async def test_nodes_are_watched_with_the_rights_of_the_manifests(
    access: ControlPlane, watched: Watched, tmp_path: Path
) -> None:
    await watched.until(lambda pools: not any(pool.num_known for pool in pools))
    path = tmp_path / "node.json"
    path.write_text(json.dumps(gpu_node("gpu-1", 9, 0)))
    await asyncio.to_thread(access.kubectl_run, "create", "-f", str(path))
    try:
        await watched.until(lambda pools: [p.num_known for p in pools] == [1])
    finally:
        await asyncio.to_thread(access.kubectl_run, "delete", "node", "gpu-1")


async def test_a_missing_right_is_explained_by_the_servers_message(access: ControlPlane) -> None:
    explained, messages = threading.Event(), list[str]()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            if 'cannot list resource "nodes"' in messages[-1]:
                explained.set()

    listener, logger = Listener(), logging.getLogger("services.controller.platform.kubernetes")
    access.kubectl_run("delete", "clusterrolebinding", "smelt-controller")
    logger.addHandler(listener)
    watched = Watched(access)
    watched.nodes.start()
    try:
        assert await asyncio.to_thread(explained.wait, LIMIT_S), messages
    finally:
        logger.removeHandler(listener)
        await asyncio.to_thread(watched.nodes.stop)
