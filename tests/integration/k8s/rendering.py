"""Renders an overlay as `kubectl apply -k` would."""

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.k8s.objects import Objects

ROOT = Path(__file__).resolve().parents[3]
K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir() if path.is_dir())
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir() if path.is_dir())


def render(folder: Path) -> Objects:
    """The objects of a folder with a kustomization.yaml; each caller gets its own copy."""
    return list(yaml.load_all(_rendered(folder), Loader=yaml.CSafeLoader))


@functools.cache
def _rendered(folder: Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the manifests were not rendered; see k8s/README.md")
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
