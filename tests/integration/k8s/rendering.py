"""Renders an overlay as `kubectl apply -k` would."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.k8s.objects import Objects

ROOT = Path(__file__).resolve().parents[3]
K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir() if path.is_dir())
COMPONENTS = sorted(path.name for path in (K8S / "components").glob("gpu-*"))
# What an overlay lists only where somebody wants it.
OPTIONS = sorted(path.name for path in (K8S / "components").iterdir() if path.name[:4] != "gpu-")


def render(folder: Path) -> Objects:
    """The objects of a folder with a kustomization.yaml; each caller gets its own copy."""
    return list(yaml.load_all(_rendered(folder), Loader=yaml.CSafeLoader))


def render_with(overlay: Path, component: str, folder: Path) -> Objects:
    """The objects of an overlay that lists one component more; written to an empty folder."""
    document = {
        "resources": [os.path.relpath(overlay, folder)],
        "components": [os.path.relpath(K8S / "components" / component, folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return render(folder)


@functools.cache
def _rendered(folder: Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the manifests were not rendered; see k8s/README.md")
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
