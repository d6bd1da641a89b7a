"""The built wheel, installed for one role: each process has what it needs in its own extra.

One model goes through all of them: the command line adds it to a store, the compiler builds its
engine, a replica serves with that, and a gateway starts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from services.telemetry.ready import wait_ready
from tests.conformance.tiny_model import tiny_model
from tests.integration.wheel.environments import ROOT, build_wheel, make_environment

Start = Callable[..., subprocess.Popen[str]]
QUICK = ("--benchmark-s", "0", "--benchmark-iterations", "3", "--num-threads", "1")
# By the installer of `make install`: pip takes minutes to unpack what that links from its cache.
INSTALL = """
source deploy/local/functions.sh
get_uv "$1" "$2"
use_settings_of_pip "$1"
"$uv" pip install --quiet --python "$3/bin/python" --constraint "$4" "$5"
"$uv" pip check --python "$3/bin/python"
"""
# What the roles are without, by their own words in pyproject.toml and deploy/README.md.
ABSENT = {
    "gateway": ("torch", "onnx", "ray"),
    "replica": ("nncf", "typer", "tritonclient"),
    "compiler": ("ray", "grpc", "typer"),
    "cli": ("transformers", "pytest", "pyarrow"),
}

# As Ray's actor does, with whatever the environment sets.
_SERVE = """
import asyncio
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder

async def serve():
    server = ReplicaServer(ReplicaSettings(), NullRecorder())
    await server.start()
    print(server.replica.loaded.kind)
    await server.stop()

asyncio.run(serve())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return build_wheel(folder)


@pytest.fixture(scope="module")
def process(folder: Path, wheel: Path) -> Start:
    """Starts `python ARGUMENTS` in a role's environment, which sees nothing of this one."""
    interpreters: dict[str, Path] = {}

    def start(role: str, *arguments: str, **settings: object) -> subprocess.Popen[str]:
        if role not in interpreters:
            interpreters[role] = make_environment(folder / role, wheel, role)
        ready = settings.get("ready_fd")
        given = {f"SMELT_{role}_{name}".upper(): str(value) for name, value in settings.items()}
        return subprocess.Popen(
            [interpreters[role], *arguments],
            env=own_environment() | given,
            cwd=folder,
            pass_fds=(ready,) if isinstance(ready, int) else (),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


@pytest.fixture(scope="module")
def store(folder: Path, process: Start) -> Path:
    """With a model that the installed command line added."""
    onnx.save(tiny_model(), folder / "tiny.onnx")
    add = ("models", "add", "tiny", "tiny.onnx", "--json", "--store", str(folder / "store"))
    assert '"tiny"' in output_of(process("cli", "-m", "services.cli.main", *add))
    return folder / "store"


def own_environment() -> dict[str, str]:
    """This process's, without what would show its packages to another interpreter."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def served_until_told(process: subprocess.Popen[str], ready_fd: int) -> dict[str, Any]:
    """What a process announced; then it is asked to stop, and must end well."""
    try:
        told = wait_ready(ready_fd, 300, "process")
    finally:
        process.terminate()
    output_of(process)
    return told


@pytest.mark.parametrize("role", ABSENT)
def test_an_environment_holds_nothing_else(role: str, process: Start) -> None:
    """Else the tests below would prove nothing."""
    look = "from importlib.util import find_spec; import sys; print(*map(find_spec, sys.argv[1:]))"
    found = output_of(process(role, "-c", look, "services", *ABSENT[role]))
    first, *others = found.replace("ModuleSpec(", "").split(" None")
    assert f"/{role}/lib/" in first
    assert len(others) == len(ABSENT[role])


def test_the_command_line_shows_every_command(process: Start) -> None:
    assert "models" in output_of(process("cli", "-m", "services.cli.main", "--help"))


def test_gateway(process: Start) -> None:
    read_fd, write_fd = os.pipe()
    gateway = process(
        "gateway", "-m", "services.gateway", grpc_port=0, metrics_port=0, ready_fd=write_fd
    )
    os.close(write_fd)
    assert served_until_told(gateway, read_fd)["grpc_port"] > 0


def test_compiler_builds_what_the_command_line_added_and_a_replica_serves_with_it(
    folder: Path, store: Path, process: Start
) -> None:
    build = ("build", "tiny", "--kind", "onnxruntime", "--json", *QUICK)
    where = ("--store-url", str(store), "--cache-dir", str(folder / "cache"))
    report = json.loads(output_of(process("compiler", "-m", "compiler_worker", *build, *where)))
    assert [record["outcome"] for record in report["records"]] == ["proven"]

    replica = process(
        "replica",
        "-c",
        _SERVE,
        store_url=store,
        model="tiny",
        cache_dir=folder / "cache",
        socket_dir=folder,
        num_threads=1,
    )
    assert output_of(replica).split()[-1] == "onnxruntime"


@pytest.mark.slow
@pytest.mark.parametrize("role", ABSENT)
def test_an_empty_environment_takes_the_wheel_from_the_package_index(
    role: str, folder: Path, wheel: Path
) -> None:
    """The links above show what is declared, this one what a package installer makes of it."""
    environment, locks = folder / f"empty-{role}", sorted(ROOT.glob("requirements*.lock"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    pins = [line.split()[0] for line in lines if line[:1].isalpha()]
    (folder / "constraints.txt").write_text("\n".join(pins))
    probe = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir")
    probe = (*probe, "--disable-pip-version-check", "-d", folder / "probe", "annotated-types")
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("no package index is reachable: pip could not download annotated-types")
    try:
        given = (sys.executable, folder / "tools", environment, folder / "constraints.txt")
        command = ("bash", "-euc", INSTALL, "install", *given, f"{wheel}[{role}]")
        subprocess.run(command, check=True, cwd=ROOT, env=own_environment())
        modules = {
            "cli": "services.cli.main",
            "compiler": "compiler_worker",
            "replica": "services.replica.app",
        }
        module = modules.get(role, f"services.{role}.__main__")
        imports = [environment / "bin" / "python", "-c", f"import {module}"]
        subprocess.run(imports, check=True, cwd=folder, env=own_environment())
    finally:
        shutil.rmtree(environment)
