"""Every overlay renders, and nothing in it is wrong."""

import pytest
import yaml

from tests.integration.k8s.checks import CHECKS, Check
from tests.integration.k8s.objects import ray_service
from tests.integration.k8s.rendering import COMPONENTS, K8S, OVERLAYS, render


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_wrong(overlay: str, check: Check) -> None:
    assert check(render(K8S / "overlays" / overlay)) == []


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
    names = {one["name"] for one in yaml.safe_load(
        (folder / "kustomization.yaml").read_text())["images"]}  # fmt: skip
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
