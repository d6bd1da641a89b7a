"""External models as Deployments and Services of an emulated cluster."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from services.contracts.errors import ExternalServerError, NotReadyError
from services.contracts.external.external_model import ExternalModel
from services.contracts.external.server_manifest import SERVER_LABEL
from services.controller.api.fleet_state import FleetState
from services.controller.external import external_watch
from services.controller.external.external_watch import ExternalWatch, WantedExternal
from services.controller.platform.kubernetes.servers import KubernetesServers
from tests.integration.gateway.external.openai_server import OpenAiServer, openai_server
from tests.integration.kubernetes.emulated_cluster import NAMESPACE, Asked, EmulatedCluster
from tests.kubernetes_manifest import documents, external_server
from tests.unit.services.controller.deploy.reconcile_world import until_model

DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
async def servers(cluster: EmulatedCluster) -> AsyncIterator[KubernetesServers]:
    with closing(KubernetesServers(cluster.config, NAMESPACE)) as servers:
        yield servers


async def apply(servers: KubernetesServers, *models: ExternalModel, kept: str = "") -> bool:
    return await asyncio.to_thread(servers.apply, models, [kept] if kept else [])


async def find(servers: KubernetesServers, model: ExternalModel) -> ExternalModel:
    return await asyncio.to_thread(servers.find, model)


def names(cluster: EmulatedCluster) -> set[str]:
    return {*cluster.objects("deployments"), *cluster.objects("services")}


async def set_status(cluster: EmulatedCluster, name: str = "vllm-1", **status: Any) -> None:
    await cluster.patch(f"{DEPLOYMENTS}/{name}", {"status": status})


async def test_versions_run_beside_each_other_until_one_is_removed(
    cluster: EmulatedCluster, servers: KubernetesServers
) -> None:
    first, second = external_server(), external_server(version=2)
    assert await apply(servers, first)
    assert await apply(servers, first, second)
    for kind in ("deployments", "services"):
        for made in cluster.objects(kind).values():
            kubernetes_validate.validate(made, "1.34", strict=True)
    assert names(cluster) == {"vllm-1", "chat-1", "vllm-2", "chat-2"}
    await set_status(cluster, "vllm-2", availableReplicas=1)
    assert (await find(servers, second)).url == "openai+http://chat-2.smelt.svc:80/v1"
    with pytest.raises(NotReadyError, match="Deployment vllm-1: no Pod yet"):
        await find(servers, first)
    assert await apply(servers, second)
    assert names(cluster) == {"vllm-2", "chat-2"}
    # The store does not tell of it now.
    assert await apply(servers, kept="chat")
    assert names(cluster) == {"vllm-2", "chat-2"}
    assert await apply(servers)
    assert names(cluster) == set()
    assert not await apply(servers)


async def test_what_is_there_is_left_as_it_is(
    cluster: EmulatedCluster, servers: KubernetesServers
) -> None:
    await apply(servers, external_server())
    await cluster.patch(f"{DEPLOYMENTS}/vllm-1", {"spec": {"replicas": 5}})
    with closing(KubernetesServers(cluster.config, NAMESPACE)) as of_the_next_controller:
        await apply(of_the_next_controller, external_server())
    assert cluster.objects("deployments")["vllm-1"]["spec"]["replicas"] == 5
    await cluster.delete(f"{SERVICES}/chat-1")
    await apply(servers, external_server())
    assert "chat-1" in names(cluster)


@pytest.mark.parametrize(("index", "path"), [(0, DEPLOYMENTS), (1, SERVICES)])
@pytest.mark.parametrize("labels", [{}, {SERVER_LABEL: "vllm-1"}])
async def test_an_object_of_others_is_named_and_neither_changed_nor_deleted(
    cluster: EmulatedCluster,
    servers: KubernetesServers,
    index: int,
    path: str,
    labels: dict[str, str],
) -> None:
    theirs = documents()[index]
    name = f"{theirs['metadata']['name']}-1"
    theirs["metadata"] = {"name": name, "namespace": NAMESPACE, "labels": labels}
    await cluster.create(path, theirs)
    await apply(servers, external_server())
    with pytest.raises(ExternalServerError, match=f"'{name}' exists in namespace 'smelt' which is"):
        await find(servers, external_server())
    await apply(servers)
    kind = path.rpartition("/")[2]
    assert cluster.objects(kind)[name] == theirs


async def test_two_models_of_one_name_do_not_share_a_deployment(
    cluster: EmulatedCluster, servers: KubernetesServers
) -> None:
    other = external_server(name="other")
    await apply(servers, external_server(), other)
    with pytest.raises(ExternalServerError, match="a Service 'chat-1' exists in namespace 'smelt'"):
        await find(servers, other)
    # The first one's objects are deleted, and then the names are free.
    await apply(servers, other)
    found = cluster.objects("deployments")["vllm-1"]["metadata"]
    assert found["annotations"]["smelt.dev/model"] == "other"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["metadata"].update(namespace="kube-system"), "of namespace 'kube-system'; ex"),
        (lambda d: d["spec"].update(strategyy={}, replica=1), "has no field .spec.replica"),
        (lambda d: d["spec"]["template"]["spec"].update(containers=3), "Deployment of another sha"),
    ],
)
async def test_what_cannot_be_created_is_explained(
    cluster: EmulatedCluster, servers: KubernetesServers, change: Any, why: str
) -> None:
    manifest = documents()
    change(manifest[0])
    wrong = external_server(name="wrong", manifest=manifest, version=2)
    await apply(servers, wrong, external_server())
    with pytest.raises(ExternalServerError, match=why):
        await find(servers, wrong)
    # The others run all the same.
    assert "vllm-1" in names(cluster)


async def test_what_an_earlier_smelt_published_and_this_one_refuses_is_said(
    cluster: EmulatedCluster, servers: KubernetesServers
) -> None:
    manifest = documents()
    manifest[0]["spec"]["template"]["metadata"]["labels"]["ray.io/cluster"] = "x"
    stored = external_server(name="wrong").model_copy(update={"manifest": manifest})
    wrong = ExternalModel.from_json(stored.canonical_json())
    await apply(servers, wrong, external_server())
    with pytest.raises(ExternalServerError, match="pod template with labels ray.io/cluster"):
        await find(servers, wrong)
    assert names(cluster) == {"vllm-1", "chat-1"}


async def test_what_a_deployment_waits_for_is_named(
    cluster: EmulatedCluster, servers: KubernetesServers
) -> None:
    model = external_server()
    with pytest.raises(NotReadyError, match="it has no Deployment yet"):
        await find(servers, model)
    await apply(servers, model)
    refused = {"type": "ReplicaFailure", "status": "True", "message": 'violates "restricted"'}
    await set_status(cluster, conditions=[refused])
    with pytest.raises(NotReadyError, match='vllm-1: no Pod yet: violates "restricted"'):
        await find(servers, model)
    labels = {SERVER_LABEL: "vllm-1"}
    pod = {"metadata": {"name": "p", "namespace": NAMESPACE, "labels": labels}}
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    state = {"name": "vllm", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [state | {"state": {"waiting": waiting}}]}
    await cluster.create(PODS, pod | {"status": status})
    with pytest.raises(NotReadyError, match="vllm-1: ImagePullBackOff: not found$"):
        await find(servers, model)
    progress = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    await set_status(cluster, conditions=[progress])
    with pytest.raises(ExternalServerError, match="ImagePullBackOff: .*; ProgressDeadlineExceeded"):
        await find(servers, model)


@pytest.fixture
def granted(pytestconfig: pytest.Config) -> frozenset[Asked]:
    """What the component's role allows, and listing pods, which the controller's own does."""
    role, _ = yaml.safe_load_all(
        (pytestconfig.rootpath / "k8s/components/model-servers/access.yaml").read_text()
    )
    return frozenset(
        Asked(verb, rule["apiGroups"][0], resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ) | {Asked("list", "", "pods")}


async def test_what_cannot_be_deleted_stops_no_other(
    cluster: EmulatedCluster, servers: KubernetesServers, granted: frozenset[Asked]
) -> None:
    await apply(servers, external_server())
    # Services come first: a refused one must not spare the Deployment.
    cluster.emulator.granted = granted - {Asked("delete", "", "services")}
    second = external_server(version=2)
    with pytest.raises(NotReadyError, match="^Service chat-1 is not deleted: .*'delete'"):
        await apply(servers, second)
    assert names(cluster) == {"chat-1", "vllm-2", "chat-2"}
    with pytest.raises(NotReadyError, match="vllm-2: no Pod yet; Service chat-1 is not deleted"):
        await find(servers, second)
    cluster.emulator.granted = granted
    await apply(servers, second)
    assert names(cluster) == {"vllm-2", "chat-2"}
    with pytest.raises(NotReadyError, match="vllm-2: no Pod yet$"):
        await find(servers, second)


async def test_the_granted_verbs_are_those_that_are_asked_for(
    cluster: EmulatedCluster, servers: KubernetesServers, granted: frozenset[Asked]
) -> None:
    cluster.emulator.granted = granted
    await apply(servers, external_server())
    with pytest.raises(NotReadyError, match="no Pod yet"):
        await find(servers, external_server())
    await apply(servers)
    assert cluster.emulator.asked == granted


@pytest.fixture
async def server() -> AsyncIterator[OpenAiServer]:
    async with openai_server() as server:
        yield server


@pytest.fixture
def cluster_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of Services are this host, as the cluster's DNS has them where pods run."""
    resolve = socket.getaddrinfo

    def answer(host: str, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.0.1" if host.endswith(".svc") else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.usefixtures("cluster_dns")
async def test_a_model_is_ready_once_its_server_answers(
    cluster: EmulatedCluster,
    servers: KubernetesServers,
    server: OpenAiServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(external_watch, "LOADING_EVERY_S", 0.01)
    manifest = documents()
    manifest[1]["spec"]["ports"][0]["port"] = server.port
    (container,) = manifest[0]["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "KEY", "value": "s3cret"}]
    model = external_server(f"k8s+openai+http://chat:{server.port}/v1", manifest=manifest)
    state = FleetState("u", 1)
    watch = ExternalWatch(state, tmp_path, 0.01, servers, runs_apps=True)
    try:
        await watch.follow([WantedExternal(model, 0.0, False)])
        await until_model(state, lambda m: m.reason == "Deployment vllm-1: no Pod yet")
        assert b"s3cret" not in state.snapshot().SerializeToString()
        await set_status(cluster, availableReplicas=1)
        await until_model(state, lambda m: m.state == "READY")
        (shown,) = state.models()
        asked = f"openai+http://chat-1.smelt.svc:{server.port}/v1"
        assert ExternalModel.from_json(shown.external_json).url == asked
        await watch.follow([WantedExternal(model, 0.0, True)])
        assert names(cluster) == set()
        assert b"s3cret" not in state.snapshot().SerializeToString()
    finally:
        await watch.close()
