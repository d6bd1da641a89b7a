"""deploy/local/install.sh in a small project, whose packages lie in a folder and on no index.

The pinned uv is not among them, so that pip installs: as where no index has it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Builds an editable installation without setuptools, which is on no index either.
BACKEND = """
import zipfile
def build_editable(folder, *_):
    name = "small-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        metadata = "Metadata-Version: 2.1\\nName: small\\nVersion: 1\\n"
        wheel.writestr("small-1.dist-info/METADATA", metadata)
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
        wheel.writestr("small.py", "")
    return name
"""
# One that reaches no index.
UV = """#!/bin/sh
echo 'error: Failed to fetch runs' >&2
echo '  Caused by: refused by the proxy' >&2
exit 2
"""
# One that finds torch's CUDA build, and installs nothing.
UV_OF_CUDA = """#!/bin/sh
case "$*" in *--dry-run*) echo ' + nvidia-cublas==13' ;; *) exit 2 ;; esac
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
version = "1"
optional-dependencies = {all = ["torch==1.0"]}
"""


def make_wheel(folder: Path, name: str, version: str, *files: str) -> str:
    """A wheel with empty files; returns its hash."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in files:
            wheel.writestr(file, "")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(project: Path, mode: str) -> subprocess.CompletedProcess[str]:
    given = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(project / "wheels"),
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        [project / "deploy/local/install.sh", mode],
        env={**os.environ, **given, "PIP_CONFIG_FILE": os.devnull},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "deploy" / "local", tmp_path / "deploy" / "local")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "torch", "1.0+cpu", "torch/__init__.py", "torch/test/large")
    size = "# size: 3 MB to download, 5 MB installed\n"
    torch = "# torch: 4 MB to download, 6 MB installed; its CUDA build 9 MB to download\n"
    for name, file in (("runs", "requirements.lock"), ("tests", "requirements-dev.lock")):
        digest = make_wheel(wheels, name, "2", f"{name}.py")
        (tmp_path / file).write_text(f"{size}{torch}{name}==2 \\\n    --hash=sha256:{digest}\n")
        torch = ""
    (tmp_path / "requirements-gpu.lock").write_text("")
    return tmp_path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `install.sh` would make first, with nothing installed."""
    folder = tmp_path_factory.mktemp("environment") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def begun(project: Path, environment: Path) -> Path:
    """The project with such an environment: installing goes on in one that is there."""
    shutil.copytree(environment, project / ".venv", symlinks=True)
    return project


def use_uv(project: Path, script: str) -> None:
    """Have a project's folder of packages offer this as uv."""
    make_wheel(project / "wheels", "uv", "1")
    wheel = project / "wheels" / "uv-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "a") as opened:
        command = zipfile.ZipInfo("uv-1.data/scripts/uv")
        command.external_attr = 0o100755 << 16  # of a regular file
        opened.writestr(command, script)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = project / "deploy" / "local" / "installer.lock"
    lock.write_text(f"uv==1 --hash=sha256:{digest}\n")


def packages(project: Path) -> set[str]:
    (found,) = project.glob(".venv/lib/python3.*/site-packages")
    return {path.relative_to(found).as_posix() for path in found.rglob("*")}


def test_what_runs_then_what_develops(project: Path) -> None:
    done = install(project, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "uv is not to be had here: pip installs instead" in done.stdout
    assert "7 MB to download, 11 MB installed" in done.stdout
    assert {"runs.py", "small.py", "torch/__init__.py", "torch-1.0+cpu.dist-info"} <= packages(
        project
    )
    assert not {"tests.py", "torch/test"} & packages(project)

    done = install(project, "dev")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"runs.py", "tests.py"} <= packages(project)


@pytest.mark.slow
def test_why_uv_could_not_is_shown_and_pip_installs(begun: Path) -> None:
    use_uv(begun, UV)
    done = install(begun, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    told = "error: Failed to fetch runs\nCaused by: refused by the proxy\nuv could not: pip"
    assert told in done.stdout
    assert "runs.py" in packages(begun)


def test_a_package_with_another_hash_is_refused(begun: Path) -> None:
    lock = begun / "requirements.lock"
    lock.write_text(lock.read_text()[:-5] + "0000\n")
    done = install(begun, "run")
    assert done.returncode != 0
    assert "HASHES" in done.stdout
    assert "runs.py" not in packages(begun)


@pytest.mark.parametrize("is_right", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_cuda_build_of_torch_is_held_to_its_hash(begun: Path, is_right: bool) -> None:
    use_uv(begun, UV_OF_CUDA)
    digest = make_wheel(begun / "wheels", "torch", "1.0", "torch/cuda.py")
    # The other build would be taken by its version, as it is the newer one to pip.
    (begun / "wheels" / "torch-1.0+cpu-py3-none-any.whl").unlink()
    digest = digest if is_right else "0" * 64
    lock = begun / "deploy" / "local" / "torch.lock"
    lock.write_text(f"torch==1.0 \\\n    --hash=sha256:{digest}\n")
    done = install(begun, "run")
    assert (done.returncode == 0) == is_right, done.stdout + done.stderr
    assert ("torch/cuda.py" in packages(begun)) == is_right
    assert ("HASHES" in done.stdout) != is_right
