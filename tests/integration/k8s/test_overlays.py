"""Every overlay renders, and nothing in it is wrong."""

from pathlib import Path

import pytest
import yaml

from tests.integration.k8s.checks import CHECKS, Check
from tests.integration.k8s.configuration import environment
from tests.integration.k8s.network import (
    CONTROLLER,
    FLEET,
    GATEWAY,
    OUTSIDE,
    STRANGER,
    Place,
    is_allowed,
)
from tests.integration.k8s.objects import of_kind, pods, ray_service
from tests.integration.k8s.rendering import COMPONENTS, K8S, OPTIONS, OVERLAYS, render, render_with
from tests.integration.k8s.wiring import MODEL_SERVER


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_wrong(overlay: str, check: Check) -> None:
    assert check(render(K8S / "overlays" / overlay)) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_wrong_with_an_option(option: str, tmp_path: Path) -> None:
    objects = render_with(K8S / "overlays" / "production", option, tmp_path)
    assert [finding for check in CHECKS for finding in check(objects)] == []


def test_clients_of_http_reach_the_gateways_where_an_overlay_lists_it(tmp_path: Path) -> None:
    production = K8S / "overlays" / "production"
    without, with_http = render(production), render_with(production, "http", tmp_path)
    flow = (STRANGER, GATEWAY, 8000)
    policies = [
        [item["spec"] for item in of_kind(objects, "NetworkPolicy")]
        for objects in (without, with_http)
    ]
    assert [is_allowed(each, *flow) for each in policies] == [False, True]
    (gateway,) = [pod for pod in pods(with_http) if pod.labels["smelt.dev/part"] == "gateway"]
    assert environment(gateway, with_http)["SMELT_GATEWAY_HTTP_PORT"] == "8000"
    assert gateway.port_names()["http"] == 8000


def test_builds_see_of_the_fleets_secret_the_samples_key_alone(tmp_path: Path) -> None:
    objects = render_with(K8S / "overlays" / "production", "sample-key", tmp_path)
    (pod,) = [pod for pod in pods(objects) if pod.labels["smelt.dev/part"] == "builder"]
    (volume,) = [one for one in pod.spec["volumes"] if "secret" in one]
    assert [item["key"] for item in volume["secret"]["items"]] == ["samples.key"]
    assert volume["secret"]["optional"]
    (mount,) = [one for one in pod.containers[0]["volumeMounts"] if one["name"] == volume["name"]]
    assert environment(pod, objects)["SMELT_SAMPLE_KEY"] == f"{mount['mountPath']}/samples.key"


def test_gateways_and_controller_alone_reach_model_servers_where_an_overlay_lists_them(
    tmp_path: Path,
) -> None:
    production = K8S / "overlays" / "production"
    servers = Place(tuple(MODEL_SERVER.items()))
    flows = [(one, servers) for one in (GATEWAY, CONTROLLER, FLEET, STRANGER, servers)]
    for objects, allowed in (
        (render(production), [False] * 5),
        (render_with(production, "model-servers", tmp_path), [True, True, False, False, False]),
    ):
        policies = [item["spec"] for item in of_kind(objects, "NetworkPolicy")]
        assert [is_allowed(policies, *flow, 8000) for flow in flows] == allowed
        assert not is_allowed(policies, servers, OUTSIDE, 443)


def test_there_is_an_overlay_for_each_purpose() -> None:
    assert OVERLAYS == ["local", "production", "staging"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_adds_one_group_last(component: str) -> None:
    """KubeRay leaves a running cluster as it is only when groups are added at the end."""
    groups = ray_service(render(K8S / "overlays" / "production"))["spec"]["rayClusterConfig"][
        "workerGroupSpecs"
    ]
    position = [group["groupName"] for group in groups].index(component.removeprefix("gpu-"))
    listed = yaml.safe_load((K8S / "overlays/production/kustomization.yaml").read_text())
    assert listed["components"].index(f"../../components/{component}") == position - 1
    assert groups[position]["minReplicas"] == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_are_named_in_one_place(overlay: str) -> None:
    folder = K8S / "overlays" / overlay
    names = {
        one["name"] for one in yaml.safe_load((folder / "kustomization.yaml").read_text())["images"]
    }
    assert names == {"smelt-gateway", "smelt-controller", "smelt-replica", "smelt-compiler"}
    others = [path for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"]
    named = [p.name for p in others if "image:" in p.read_text().replace("smelt-compiler\n", "")]
    assert named in ([], ["builder-job.yaml"])


def test_no_patch_merges() -> None:
    """A strategic merge replaces the lists of a custom resource: every patch is JSON 6902."""
    for path in K8S.rglob("kustomization.yaml"):
        document = yaml.safe_load(path.read_text())
        assert "patchesStrategicMerge" not in document
        for patch in document.get("patches", []):
            operations = yaml.safe_load((path.parent / patch["path"]).read_text())
            assert all("op" in operation for operation in operations), patch
