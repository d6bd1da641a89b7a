"""The locks: hashes for everything, in step with pyproject.toml, and no larger than is promised."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
RUN, GPU, DEV = "requirements.lock", "requirements-gpu.lock", "requirements-dev.lock"
TORCH = "deploy/local/torch.lock"
# Bound elsewhere: by torch.lock, and cuda.lock for images.
WITHOUT_LOCK = {"torch", "tensorrt-cu13"}


def locked(*files: str) -> list[tuple[str, str, str]]:
    """Name, version and hashes of each entry."""
    texts = [(ROOT / file).read_text() for file in files]
    entries = re.findall(r"(?m)^([a-z][^=\s]*)==(\S+)([^#]*?)(?=^\w|^#|\Z)", "\n".join(texts))
    return [(canonicalize_name(name), version, rest) for name, version, rest in entries]


def required(extra: str) -> list[Requirement]:
    """What pyproject.toml asks for by an extra, those that it names included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [Requirement(line) for line in project["optional-dependencies"][extra]]
    own = [name for entry in found if entry.name == "smelt" for name in entry.extras]
    foreign = [entry for entry in found if entry.name != "smelt"]
    inner = [entry for name in own for entry in required(name)]
    return [*foreign, *inner, *map(Requirement, project["dependencies"])]


def test_everything_is_locked_once_with_hashes() -> None:
    entries = locked(RUN, GPU, DEV)
    assert len(entries) > 150
    assert len({name for name, _, _ in entries}) == len(entries)
    assert [name for name, _, rest in entries if "--hash=sha256:" not in rest] == []


def test_the_cuda_build_of_torch_is_locked_with_its_libraries() -> None:
    entries = {name: (version, rest) for name, version, rest in locked(TORCH)}
    (wanted,) = (each for each in required("replica") if each.name == "torch")
    assert wanted.specifier.contains(entries["torch"][0])
    assert {"triton", "nvidia-cublas", "nvidia-cudnn-cu13"} < entries.keys()
    assert [name for name, (_, rest) in entries.items() if "--hash=sha256:" not in rest] == []
    # For CPython 3.11 and 3.12, on x86_64 and on aarch64.
    assert entries["torch"][1].count("--hash=sha256:") == 4


@pytest.mark.parametrize(
    ("extra", "files"), [("demo", [RUN]), ("rtx", [RUN, GPU]), ("dev", [RUN, GPU, DEV])]
)
def test_a_lock_has_what_pyproject_asks_for(extra: str, files: list[str]) -> None:
    versions = {name: version for name, version, _ in locked(*files)}
    for requirement in required(extra):
        name = canonicalize_name(requirement.name)
        if name not in WITHOUT_LOCK:
            assert name in versions, f"{name} is in no lock: make lock KEEP=1"
            assert requirement.specifier.contains(versions[name], prereleases=True), name


def test_what_runs_is_apart_from_what_develops() -> None:
    names = {name for name, _, _ in locked(RUN)}
    assert not names & {"torch", "triton", "pytest", "mypy", "tensorrt-rtx-cu13", "pyarrow"}


def test_what_runs_is_no_larger_than_is_promised() -> None:
    sizes = re.findall(r"(?m)^# (?:size|torch):.* (\d+) MB installed", (ROOT / RUN).read_text())
    assert len(sizes) == 2
    assert sum(map(int, sizes)) <= 1600


def test_the_cuda_lock_binds_what_the_others_do_not() -> None:
    text = (ROOT / "deploy/docker/cuda.lock").read_text()
    own = {canonicalize_name(line.partition("==")[0]) for line in text.splitlines() if "==" in line}
    assert "tensorrt-cu13" in own
    assert not own & {name for name, _, _ in locked(RUN, GPU, DEV)}


@pytest.mark.parametrize(
    ("target", "newer", "installs"),
    [
        ("run", None, None),
        ("run", RUN, "run"),
        ("run", DEV, None),
        ("check", None, None),
        ("check", RUN, "dev"),
        ("check", DEV, "dev"),
    ],
)
def test_make_installs_when_a_lock_has_changed(
    tmp_path: Path, target: str, newer: str | None, installs: str | None
) -> None:
    names = [f"deploy/local/{name}" for name in ("install.sh", "functions.sh", "installer.lock")]
    names.append(TORCH)
    names += [RUN, GPU, DEV, "pyproject.toml", ".venv/.installed", ".venv/.installed-dev"]
    for name in names:  # what is installed last
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(ROOT / "Makefile", tmp_path)
    changed = [f"--what-if={newer}"] if newer else []
    command = ["make", "--dry-run", "-C", str(tmp_path), *changed, target]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"install\.sh (\w+)", output) == ([installs] if installs else [])


def test_a_lock_keeps_the_hashes_of_wheels_for_linux_alone(tmp_path: Path) -> None:
    wheels = {
        "x-1-cp311-cp311-manylinux_2_28_x86_64.whl": "a",
        "x-1-cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64.whl": "b",
        "x-1-cp311-cp311-macosx_14_0_arm64.whl": "c",
        "x-1-cp313-cp313-manylinux_2_28_x86_64.whl": "d",
    }
    files = "".join(
        f'{{url = "https://index/{name}", hash = "sha256:{key}", size = 2000000}},'
        for name, key in wheels.items()
    )
    packages = (f'[[package]]\nname = "{n}"\nwheels = [{files}]\n' for n in ("x", "y", "torch"))
    (tmp_path / "uv.lock").write_text("".join(packages))
    (tmp_path / "demo.txt").write_text("x==1\ntorch==1\ncolor==1 ; sys_platform == 'win32'\n")
    (tmp_path / "rtx.txt").write_text("")
    (tmp_path / TORCH).parent.mkdir(parents=True)
    (tmp_path / "dev.txt").write_text("x==1\ny==1\n")
    sizes = ["demo=7", "rtx=0", "dev=3", "torch=5", "torch_download=4"]
    script = ROOT / "deploy/local/lock.py"
    subprocess.run([sys.executable, script, tmp_path, *sizes], check=True, cwd=tmp_path)
    run, dev = ((tmp_path / name).read_text() for name in (RUN, DEV))
    assert run.endswith("\nx==1 \\\n    --hash=sha256:a \\\n    --hash=sha256:b\n")
    assert "# size: 2 MB to download, 7 MB installed\n" in run
    assert "# torch: 4 MB to download, 5 MB installed; its CUDA build 2 MB to download\n" in run
    assert re.findall(r"(?m)^\w+==", dev) == ["y=="]
    hashes = " \\\n    --hash=sha256:a \\\n    --hash=sha256:b\n"
    assert (tmp_path / TORCH).read_text().endswith(f"\ntorch==1{hashes}")
