"""Starts what is compared, and reads the CPU time of its processes."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.dataplane.launch import ended, free_port, start
from tests.benchmarks.dataplane.payloads import HUGE, MAX_BATCH, PAYLOADS, write_model
from tests.benchmarks.transport.report import FLOOR
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home
from tests.integration.fleet.onnx_files import write_recipe

SMELT = "Smelt: gateway, replica"
SERVE_DEFAULT = "Ray Serve gRPC proxy"
SERVE_FAST = "Ray Serve, throughput flags"
SERVE_HAPROXY = "Ray Serve, HAProxy mode"
# All that Ray Serve documents for throughput, with its proxy still in the path. The second is
# needed because the first is read after the proxy's transport was chosen.
FAST_ENV = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}

# Serve's direct ingress with the HAProxy that it brings before it. By default HAProxy takes 100
# requests of a connection at a time and grants each 64 KB ahead: too little for what is asked here.
HAPROXY_ENV = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_H2_FE_INITIAL_WINDOW_SIZE": str(1 << 20),
    "RAY_SERVE_HAPROXY_H2_BE_INITIAL_WINDOW_SIZE": str(1 << 20),
    "RAY_SERVE_HAPROXY_H2_FE_MAX_CONCURRENT_STREAMS": "256",
    "RAY_SERVE_HAPROXY_H2_BE_MAX_CONCURRENT_STREAMS": "256",
    "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(1 << 16),
    # Nothing is asked any more when it ends.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
}
_HAPROXY_FILES = {
    "CONFIG_FILE_LOC": "haproxy.cfg",
    "SOCKET_PATH": "admin.sock",
    "METRICS_SOCKET_PATH": "metrics.sock",
    "SERVER_STATE_BASE": "",
    "SERVER_STATE_FILE": "server-state",
}


@dataclass(frozen=True, kw_only=True)
class Servers:
    """One thing that is compared.

    Attributes:
        target: where clients connect.
        pids: the processes that a request of a payload passes, by role.
    """

    target: str
    pids: Mapping[str, Mapping[str, Sequence[int]]]

    def cpu_s(self, payload: str) -> dict[str, float]:
        """User plus system CPU seconds so far, by role."""
        return {role: sum(map(_cpu_s, pids)) for role, pids in self.pids[payload].items()}


@contextmanager
def all_servers() -> Iterator[dict[str, Servers]]:
    """Everything that needs no environment of its own, running at the same time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            FLOOR: stack.enter_context(started("plain", {})),
            SMELT: stack.enter_context(smelt(folder)),
            SERVE_DEFAULT: stack.enter_context(started("serve", {})),
            SERVE_FAST: stack.enter_context(started("serve", FAST_ENV)),
            SERVE_HAPROXY: stack.enter_context(started("serve", haproxy_env(folder))),
        }


def haproxy_env(folder: Path) -> dict[str, str]:
    """The flags of Serve's HAProxy mode, its files in a folder and its ports free ones."""
    files = {key: str(folder / name) for key, name in _HAPROXY_FILES.items()}
    ports = {key: str(free_port()) for key in ("METRICS_PORT", "STATS_PORT")}
    return HAPROXY_ENV | {f"RAY_SERVE_HAPROXY_{k}": v for k, v in (files | ports).items()}


@contextmanager
def started(role: str, env: Mapping[str, str]) -> Iterator[Servers]:
    """A server of `processes`, until the block ends."""
    target = f"127.0.0.1:{free_port()}"
    process = start(role, target, env=env)
    assert process.stdout is not None
    with ended(process):
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{role} did not start")
        yield Servers(target=target, pids=dict.fromkeys((*PAYLOADS, HUGE), json.loads(line)))


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


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
