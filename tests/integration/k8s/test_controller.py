"""The controller's process with what the manifests give it: settings, template and rights."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.integration.k8s.configuration import environment
from tests.integration.k8s.objects import (
    Object,
    Objects,
    config_map,
    of_kind,
    pods,
    ray_service,
)
from tests.integration.k8s.rendering import K8S, ROOT, render_with
from tests.integration.kubernetes.emulated_cluster import (
    NAMESPACE,
    Asked,
    EmulatedCluster,
    gpu_node,
)
from tests.integration.replica.published import Shelf
from tests.kubernetes_manifest import external_server
from tests.unit.deploy.blocked import HEAVY, RUN_BLOCKED

# Of a process that starts on a busy machine; nothing here waits for it to pass.
LIMIT_S = 120.0
RAY_SERVICES = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayservices"


@pytest.fixture
async def cluster() -> AsyncIterator[EmulatedCluster]:
    """An emulated API server that grants what the rendered roles grant."""
    async with EmulatedCluster() as emulated:
        yield emulated


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A store with one model and no engine, and one that Kubernetes is to run."""
    shelf = Shelf(tmp_path)
    shelf.publish_model()
    shelf.registry.add_external_version(external_server(version=0))
    return shelf.store_url


async def test_a_node_brings_a_build_and_a_model_a_server_that_the_manifests_describe(
    cluster: EmulatedCluster, store_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "overlay"
    folder.mkdir()
    objects = render_with(K8S / "overlays" / "staging", "model-servers", folder)
    cluster.emulator.granted = granted(objects)
    await cluster.create(RAY_SERVICES, ray_service(objects))
    await cluster.create("/api/v1/nodes", gpu_node("gpu-1", 9, 0))
    process = await asyncio.create_subprocess_exec(
        # As in its image, which has no Ray.
        *(sys.executable, "-c", RUN_BLOCKED, "services.controller", *HEAVY),
        cwd=ROOT,
        env=settings(objects, tmp_path, store_url) | kubeconfig(cluster, tmp_path),
    )
    try:
        await cluster.until(lambda: "cuda-sm90" in built_for(cluster), LIMIT_S)
        job = built_for(cluster)["cuda-sm90"]
        await cluster.until(lambda: "vllm-1" in cluster.objects("deployments"), LIMIT_S)
    finally:
        process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 0
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "smelt-builder"
    assert pod["nodeSelector"]["nvidia.com/gpu.compute.major"] == "9"
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/smelt/smelt-compiler:0.1.0"
    assert container["args"][:2] == ["build", "toy"]
    assert cluster.objects("services").keys() == {"chat-1"}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def built_for(cluster: EmulatedCluster) -> dict[str, Object]:
    """Jobs by the generation that they build for."""
    jobs = cluster.objects("jobs").values()
    return {job["metadata"]["labels"]["smelt.dev/generation"]: job for job in jobs}


def granted(objects: Objects) -> frozenset[Asked]:
    """What the rendered roles allow, as the emulator names it."""
    return frozenset(
        Asked(verb, rule["apiGroups"][0], resource)
        for role in of_kind(objects, "Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def settings(objects: Objects, tmp_path: Path, store_url: str) -> dict[str, str]:
    """The environment of the controller's pod, with folders and ports of this machine."""
    (pod,) = (one for one in pods(objects) if one.labels["smelt.dev/part"] == "controller")
    builders = tmp_path / "builders"
    builders.mkdir()
    for name, text in config_map(objects, "smelt-builders").items():
        (builders / name).write_text(text)
    token = tmp_path / "token"
    token.write_text("of-the-secret")
    return {
        **os.environ,
        **environment(pod, objects),
        "SMELT_CONTROLLER_STORE_URL": store_url,
        "SMELT_CONTROLLER_CACHE_DIR": str(tmp_path / "controller-cache"),
        "SMELT_CONTROLLER_RUN_DIR": str(tmp_path / "run"),
        "SMELT_CONTROLLER_JOB_TEMPLATE": str(builders / "job.yaml"),
        "SMELT_CONTROLLER_FLEET_TOKEN_FILE": str(token),
        "SMELT_CONTROLLER_LISTEN": "127.0.0.1:0",
        "SMELT_CONTROLLER_METRICS_HOST": "127.0.0.1",
        "SMELT_CONTROLLER_METRICS_PORT": "0",
    }


def kubeconfig(cluster: EmulatedCluster, tmp_path: Path) -> dict[str, str]:
    """Where the cluster is, in the file that people have for it."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [
            {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
        ],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{cluster.port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return {"KUBECONFIG": str(path)}
