"""What the manuals name is there."""

import re
from pathlib import Path

import pytest
import yaml

from tests.integration.k8s.rendering import K8S, render
from tests.unit.docs.markdown import blocks

ROOT = Path(__file__).resolve().parents[3]
MANUALS = [ROOT / "k8s" / "README.md", ROOT / "deploy" / "README.md"]
# Those that set up a cluster of one machine.
SETUPS = [ROOT / "k8s" / "README.md", ROOT / "docs" / "tutorials" / "kubernetes.md"]
OPERATORS = ("kuberay-operator", "GATEWAY_API_RELEASE", "PROMETHEUS_OPERATOR_RELEASE")
OPERATED = {"gateway.networking.k8s.io", "monitoring.coreos.com", "ray.io"}
# Paths as the manuals write them: from the top, or from their own folder.
PATH = re.compile(r"\b(?:k8s|deploy|base|components|overlays|tests)/[\w./-]*\w(?=[\s`*)|]|$)")


@pytest.mark.parametrize("manual", MANUALS, ids=lambda path: path.parent.name)
def test_paths_exist(manual: Path) -> None:
    paths = PATH.findall(manual.read_text())
    assert paths
    missing = [p for p in paths if not (ROOT / p).exists() and not (manual.parent / p).exists()]
    # The generation that a reader adds.
    assert [path for path in missing if "gpu-sm" not in path] == []


def test_ray_has_one_version() -> None:
    fleet = (ROOT / "k8s" / "base" / "fleet.yaml").read_text()
    (version,) = re.findall(r"rayVersion: ([\d.]+)", fleet)
    assert f'"ray[serve]=={version}"' in (ROOT / "pyproject.toml").read_text()


def test_the_overlays_release_is_the_projects() -> None:
    (version,) = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    overlay = (ROOT / "k8s" / "overlays" / "production" / "kustomization.yaml").read_text()
    tags = {image["newTag"] for image in yaml.safe_load(overlay)["images"]}
    assert tags == {version}


@pytest.mark.parametrize("manual", SETUPS, ids=lambda path: path.stem)
def test_what_a_step_needs_stands_before_it(manual: Path) -> None:
    """A Secret needs its namespace; the overlay needs the kinds of the operators."""
    with_secrets = [block.text for block in blocks(manual) if "create secret" in block.text]
    assert with_secrets
    for text in with_secrets:
        assert 0 <= text.find("apply -f k8s/base/namespace.yaml") < text.find("create secret")
    before, applied, _ = manual.read_text().partition("kubectl apply -k k8s/overlays/local")
    assert applied
    assert [name for name in OPERATORS if name not in before] == []


def test_as_many_objects_are_refused_without_operators_as_the_manual_says() -> None:
    (number,) = re.findall(r"(\d+) objects are refused", (K8S / "README.md").read_text())
    groups = [item["apiVersion"].partition("/")[0] for item in render(K8S / "overlays" / "local")]
    assert sum(group in OPERATED for group in groups) == int(number)
