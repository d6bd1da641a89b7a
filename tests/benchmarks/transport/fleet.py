"""Starts the processes of one variant and reads their CPU time."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# glibc returns large blocks to the kernel and faults them in again at each request; these
# thresholds keep them in the process.
MALLOC_ENV = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of the table: a transport on an address family, malloc tuned or not."""

    name: str
    link: str
    family: str = "tcp"
    tuned_malloc: bool = True


VARIANTS = (
    Variant(name="floor: no gateway", link=""),
    Variant(name="gRPC unary", link="grpc-unary"),
    Variant(name="gRPC stream", link="grpc-stream"),
    Variant(name="pyzmq ipc", link="zmq", family="unix"),
    Variant(name="pyzmq tcp", link="zmq"),
    Variant(name="frames, streams, unix", link="streams", family="unix"),
    Variant(name="frames, Protocol, unix", link="protocol", family="unix"),
    Variant(name="frames, Protocol, tcp", link="protocol"),
    Variant(name="frames, Buffered, unix", link="buffered", family="unix"),
    Variant(name="frames, Buffered, tcp", link="buffered"),
    Variant(name="floor, default malloc", link="", tuned_malloc=False),
    Variant(
        name="Buffered unix, default malloc", link="buffered", family="unix", tuned_malloc=False
    ),
    Variant(name="Buffered tcp, default malloc", link="buffered", tuned_malloc=False),
    # The transport in use: the same as Buffered, with everything a fleet needs.
    Variant(name="Smelt, unix", link="smelt", family="unix"),
    Variant(name="Smelt, tcp", link="smelt"),
    Variant(name="Smelt, unix, default malloc", link="smelt", family="unix", tuned_malloc=False),
)


def start(role: str, *arguments: str, tuned_malloc: bool = True) -> "subprocess.Popen[str]":
    """Starts one process; servers are waited for until they are ready."""
    inherited = {k: v for k, v in os.environ.items() if k not in MALLOC_ENV}
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.processes", role, *arguments],
        env={**inherited, **(MALLOC_ENV if tuned_malloc else {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if role != "client" and process.stdout and process.stdout.readline() != "ready\n":
        raise SystemExit(f"{role} {arguments} did not start")
    return process


def _free_port_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@dataclass(kw_only=True)
class Servers:
    """The running servers of a variant."""

    target: str
    processes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def cpu_s(self) -> dict[str, float]:
        """User plus system CPU seconds of each process so far."""
        times = {name: psutil.Process(p.pid).cpu_times() for name, p in self.processes.items()}
        return {name: t.user + t.system for name, t in times.items()}

    def stop(self) -> None:
        """Ends the processes that this object started."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def start_servers(variant: Variant, folder: Path) -> Servers:
    """Starts the replica, and the gateway unless the replica itself is the floor."""
    front = _free_port_address()
    begin = {"tuned_malloc": variant.tuned_malloc}
    servers = Servers(target=front)
    if not variant.link:
        servers.processes["replica"] = start("replica", "grpc-unary", front, **begin)
        return servers
    is_unix = variant.family == "unix"
    path = folder / f"{VARIANTS.index(variant)}.sock"
    address = str(path) if is_unix else _free_port_address()
    servers.processes["replica"] = start("replica", variant.link, address, **begin)
    servers.processes["gateway"] = start("gateway", variant.link, address, front, **begin)
    return servers
