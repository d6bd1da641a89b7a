"""What the manuals name is there."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MANUALS = [ROOT / "k8s" / "README.md", ROOT / "deploy" / "README.md"]
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
