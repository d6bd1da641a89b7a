"""What the small images hold, worked out from what the installed packages require."""

import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.deploy.blocked import HEAVY, RUN_BLOCKED
from tests.unit.deploy.dockerfiles import FOLDER, ROOT, build_extras


def required(distribution: str, extras: frozenset[str]) -> set[str]:
    """Names of all distributions that one with these extras needs, directly or not."""
    found: set[str] = set()
    waiting = [(canonicalize_name(distribution), extras)]
    seen = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        found.add(name)
        for text in requirements_of(name):
            requirement = Requirement(text)
            if is_wanted(requirement, wanted):
                needed = canonicalize_name(requirement.name)
                waiting.append((needed, frozenset(requirement.extras)))
    return found


def requirements_of(name: str) -> list[str]:
    """Our own from pyproject.toml, as what is installed may be of an older one."""
    if name != "smelt":
        return metadata.requires(name) or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].items()
    mine = [f"{text}; extra == '{extra}'" for extra, texts in optional for text in texts]
    return [*project["dependencies"], *mine]


def is_wanted(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}))


@pytest.mark.parametrize(("image", "own"), [("gateway", "uvloop"), ("controller", "lightkube")])
def test_a_small_image_has_no_heavy_library(image: str, own: str) -> None:
    names = required("smelt", frozenset(build_extras(FOLDER / f"{image}.Dockerfile")))
    assert {"grpcio", "pydantic", "obstore", "prometheus-client", own} <= names
    assert not names & HEAVY
    assert len(names) < 60


def test_a_large_image_has_them() -> None:
    """The walk sees what it would have to see."""
    names = required("smelt", frozenset({"replica", "compiler"}))
    assert {"onnx", "onnxruntime", "openvino", "ray", "torch"} <= names


@pytest.mark.parametrize(
    ("module", "variable"),
    [
        ("services.gateway", "SMELT_GATEWAY_GRPC_PORT"),
        ("services.controller", "SMELT_CONTROLLER_METRICS_PORT"),
    ],
)
def test_a_small_image_starts_without_heavy_libraries(module: str, variable: str) -> None:
    """Far enough to read its settings, which are refused: nothing is left running."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_BLOCKED, module, *HEAVY],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={variable: "-1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "SMELT_" in done.stdout + done.stderr
    assert "is blocked" not in done.stdout + done.stderr
