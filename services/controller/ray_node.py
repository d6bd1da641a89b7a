"""The Ray of a fleet on one host: `python -m services.controller.ray_node`, run by `smelt up`.

A process of its own, so that neither the end nor a failed restart of the controller takes the
replicas along. It ends when raylet or GCS do, because nothing else of that Ray is of use then;
`smelt up` starts it again.
"""

import logging
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Final

import psutil

from services.contracts.errors import SmeltError
from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.contracts.process.lifetime import end_with_parent
from services.contracts.process.settings import ProcessSettings, read_settings
from services.telemetry.logs import configure_logging
from services.telemetry.ready import announce_ready

logger = logging.getLogger(__name__)

_ESSENTIAL: Final = ("gcs_server", "raylet")
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_FORK_SERVER: Final = "services.replica.ray_worker.fork_server"
# What `services/replica/ray_worker/__main__.py` reads, in each worker that the raylet starts.
_ITS_NAME: Final = "SMELT_FORK_SERVER"
# A Ray that hangs must not keep `smelt down` waiting: its processes are killed then.
_STOP_TIMEOUT_S: Final = 20.0


class RayNodeSettings(ProcessSettings):
    """Environment variables with the prefix SMELT_RAY_NODE_.

    Attributes:
        num_cpus: logical CPUs; placement only, 0 counts the cores.
        generation_override: the node simulates this generation; "" detects.
        ready_fd: inherited pipe that gets one JSON line once Ray runs; -1 for none.
        parent_pid: this process ends when that parent does; 0 for none.
    """

    env_prefix = "SMELT_RAY_NODE_"

    num_cpus: int = 0
    generation_override: str = ""
    ready_fd: int = -1
    parent_pid: int = 0


def start_node(settings: RayNodeSettings, on_up: Callable[[Any], None]) -> None:
    """Start a Ray whose head is this host; `on_up` is called with its node once it can be joined.

    Raises InvalidRequestError for no generation.
    """
    with ThreadPoolExecutor(1) as beside:
        # CUDA's driver starts while Ray is imported.
        found = beside.submit(
            lambda: (count_slices(), own_node_labels(settings.generation_override))
        )
        import ray

        from services.controller.platform.ray.local_node import node_class
    num_gpus, labels = found.result()
    ray._private.node.Node = node_class(on_up)  # noqa: SLF001 - `init` takes no other
    ray.init(
        address="local",
        num_cpus=settings.num_cpus or None,
        num_gpus=num_gpus,
        include_dashboard=False,
        labels=labels,
        log_to_driver=False,
        logging_level="warning",
        # Ray starts workers at niceness 15: other busy processes would starve the replicas.
        _system_config={"worker_niceness": 0},
    )


def start_fork_server() -> None:
    """Start what forks this node's workers; where it ends, workers start as Ray has it."""
    name = os.environ[_ITS_NAME] = f"smelt-fork-server-{os.getpid()}-{secrets.token_hex(8)}"
    command = [sys.executable, "-m", _FORK_SERVER, name, str(os.getpid())]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def report() -> None:
        logger.error("the fork server ended (%d): replicas start without it, slower", server.wait())

    threading.Thread(target=report, name="end of the fork server", daemon=True).start()


def count_slices() -> int | None:
    """How many GPUs Ray has to hand out where they are split by MIG; None elsewhere.

    Ray counts no slices, and gives each replica one of those that CUDA_VISIBLE_DEVICES names. CUDA
    shows a process the first of them alone: this one the smallest, whose memory all others have.
    """
    from services.engines.device.mig import is_mig, mig_devices

    devices = os.environ[_VISIBLE].split(",") if _VISIBLE in os.environ else mig_devices()
    if not any(map(is_mig, devices)):
        return None
    os.environ[_VISIBLE] = ",".join(devices)
    return len(devices)


def own_node_labels(generation_override: str) -> dict[str, str]:
    """What this host's node publishes; raises InvalidRequestError for no generation."""
    from services.engines.device.device_probe import probe_device

    facts = probe_device(override=generation_override or None)
    simulated = {SIMULATED_LABEL: generation_override} if generation_override else {}
    return NodeClass.from_facts(facts).labels() | simulated


def wait_for_end() -> str:
    """Block until an essential process of the node ends; returns which, for people."""
    with ExitStack() as open_files:
        names: dict[int, str] = {}
        for process in psutil.Process().children():
            if process.name() in _ESSENTIAL:
                pid_fd = os.pidfd_open(process.pid)
                open_files.callback(os.close, pid_fd)
                names[pid_fd] = f"{process.name()} (process {process.pid})"
        if len(names) < len(_ESSENTIAL):
            return f"one of {', '.join(_ESSENTIAL)}"
        # A pidfd becomes readable when its process ends; no poll, and no pid that is used again.
        ended, _, _ = select.select(list(names), [], [])
        return names[ended[0]]


def stop_node() -> None:
    """Drain the replicas and end this Ray; returns after a while in any case."""
    import ray
    from ray import serve

    def stop() -> None:
        with suppress(Exception):  # Serve may be gone already, or never have started
            serve.shutdown()
        ray.shutdown()

    stopping = threading.Thread(target=stop, name="stop Ray", daemon=True)
    stopping.start()
    stopping.join(_STOP_TIMEOUT_S)


def _run(settings: RayNodeSettings) -> int:
    def announce(node: Any) -> None:
        session = node.get_session_dir_path()
        ready = {"address": node.gcs_address, "pid": os.getpid(), "session": session}
        announce_ready(settings.ready_fd, ready)

    start_node(settings, announce)
    # After Ray has started, which installs a handler of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        logger.error("%s of this host's Ray ended; the rest of it ends too", wait_for_end())
    except KeyboardInterrupt:
        stop_node()
        return 0
    return 1


def main() -> int:
    """Run Ray until a signal, or until a part of it ends; the process's exit status."""
    configure_logging("ray")
    try:
        settings = read_settings(RayNodeSettings)
        end_with_parent(settings.parent_pid, signal.SIGTERM)
        start_fork_server()
        status = _run(settings)
    except SmeltError as error:
        logger.error("Ray cannot be started: %s", error)
        status = 2
    # At once, and the kernel ends Ray's processes with it: Ray's own exit waits for what has ended.
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
