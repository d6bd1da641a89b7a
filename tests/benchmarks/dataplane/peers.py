"""Starts the servers that have an environment of their own, beside Smelt's."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.dataplane.launch import ended, free_port, start_module, until_answers
from tests.benchmarks.dataplane.payloads import PAYLOADS, columns_of
from tests.benchmarks.dataplane.servers import Servers

MLSERVER, TRITON = "MLServer", "Triton by pytriton"
# Folder of the environment, its package, the module that it runs.
_PEERS = {
    MLSERVER: ("mlserver", "mlserver", "tests.benchmarks.dataplane.peer_mlserver"),
    TRITON: ("pytriton", "nvidia-pytriton", "tests.benchmarks.dataplane.peer_pytriton"),
}
_PORTS = ("grpc", "http", "metrics")
_PACKAGE_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def interpreters(folder: Path | None) -> dict[str, Path]:
    """Those that are in the folder, by server; says which are not."""
    if folder is None:
        print(f"left out, as no --peers is given: {', '.join(_PEERS)}", flush=True)
        return {}
    found = {name: folder / place / "bin/python" for name, (place, _, _) in _PEERS.items()}
    for name, path in found.items():
        if not path.exists():
            print(f"left out, as {path} is not there: {name}", flush=True)
    return {name: path for name, path in found.items() if path.exists()}


def peer_versions(found: Mapping[str, Path]) -> str:
    """Of the packages in those environments."""
    lines = []
    for name, interpreter in found.items():
        package = _PEERS[name][1]
        command = [str(interpreter), "-c", _PACKAGE_VERSION, package]
        lines.append(f", {package} {subprocess.check_output(command, text=True).strip()}")
    return "".join(lines)


@contextmanager
def started_peers(found: Mapping[str, Path]) -> Iterator[dict[str, Servers]]:
    """A server for each interpreter, until the block ends."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_started(str(interpreter), _PEERS[name][2]))
            for name, interpreter in found.items()
        }


@contextmanager
def _started(interpreter: str, module: str) -> Iterator[Servers]:
    ports = {name: free_port() for name in _PORTS}
    target = f"127.0.0.1:{ports['grpc']}"
    with tempfile.TemporaryDirectory() as folder:
        models = {payload: columns_of(payload) for payload in PAYLOADS}
        order = json.dumps({"ports": ports, "folder": folder, "models": models})
        process = start_module(interpreter, module, order)
        with ended(process):
            asyncio.run(until_answers(target, PAYLOADS, process))
            yield Servers(target=target, pids=dict.fromkeys(PAYLOADS, _roles(process.pid)))


def _roles(pid: int) -> dict[str, Sequence[int]]:
    """All processes of a server: those of Triton's binary stand before those of Python."""
    root = psutil.Process(pid)
    roles: dict[str, list[int]] = {"gateway": [], "replica": []}
    for process in (root, *root.children(recursive=True)):
        role = "gateway" if process.name() == "tritonserver" else "replica"
        roles[role].append(process.pid)
    return {role: pids for role, pids in roles.items() if pids}
