"""Starts what is compared, and reads the CPU time of its processes."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.dataplane.payloads import HUGE, MAX_BATCH, PAYLOADS, write_model
from tests.benchmarks.transport.fleet import MALLOC_ENV
from tests.benchmarks.transport.report import FLOOR
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home
from tests.integration.fleet.onnx_files import write_recipe

SMELT = "Smelt: gateway, replica"
SERVE_DEFAULT = "Ray Serve gRPC proxy"
SERVE_FAST = "Ray Serve, throughput flags"
# All that Ray Serve documents for throughput, with its proxy still in the path. The second is
# needed because the first is read after the proxy's transport was chosen.
FAST_ENV = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}


# Ray's own default is 15: behind everything else that runs here, Smelt's processes included.
_NICENESS = {"RAY_worker_niceness": "0"}


@dataclass(frozen=True, kw_only=True)
class Servers:
    """One thing that is compared.

    Attributes:
        target: where clients connect.
        pids: the processes that a request of a payload passes, by role.
    """

    target: str
    pids: Mapping[str, Mapping[str, list[int]]]

    def cpu_s(self, payload: str) -> dict[str, float]:
        """User plus system CPU seconds so far, by role."""
        return {role: sum(map(_cpu_s, pids)) for role, pids in self.pids[payload].items()}


@contextmanager
def all_servers() -> Iterator[dict[str, Servers]]:
    """Everything that is compared, running at the same time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            FLOOR: stack.enter_context(started("plain", {})),
            SMELT: stack.enter_context(smelt(folder)),
            SERVE_DEFAULT: stack.enter_context(started("serve", {})),
            SERVE_FAST: stack.enter_context(started("serve", FAST_ENV)),
        }


def start(
    role: str, *arguments: str, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Starts a process of `processes`; each keeps freed memory, as Smelt's own do."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.dataplane.processes", role, *arguments],
        env=dict(os.environ) | MALLOC_ENV | _NICENESS | dict(env or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def started(role: str, env: Mapping[str, str]) -> Iterator[Servers]:
    """A server of `processes`, until the block ends."""
    target = f"127.0.0.1:{_free_port()}"
    process = start(role, target, env=env)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{role} did not start")
        yield Servers(target=target, pids=dict.fromkeys((*PAYLOADS, HUGE), json.loads(line)))
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def smelt(folder: Path, payloads: Sequence[str] = PAYLOADS) -> Iterator[Servers]:
    """A whole fleet by `smelt up`, with an ONNX Runtime engine for each payload's model."""
    with fleet_home() as fleet:
        for payload in payloads:
            model = write_model(folder / f"{payload}.onnx", payload)
            fleet.add(payload, model, write_recipe(folder / "recipe.yaml", 1, MAX_BATCH[payload]))
        fleet.up()
        for payload in payloads:
            fleet.wait_ready(payload, 1)
        yield Servers(target=fleet.address, pids={p: _smelt_pids(fleet, p) for p in payloads})


def _smelt_pids(fleet: LocalFleet, payload: str) -> dict[str, list[int]]:
    (replica,) = fleet.replicas(payload)
    gateway = fleet.child("services.gateway").pid
    return {"gateway": [gateway], "replica": [replica["process_id"]]}


def _free_port() -> int:
    """A port that nobody had a moment ago: Serve's proxy cannot be told to take any."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
