"""A fleet on this host: `LocalFleet` owns controller and gateway for `smelt up`."""

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, Self

import psutil
from pydantic import model_validator

from services.cli.control_client import tell_fleet, wait_served, watch_fleet
from services.cli.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.gateway_client import require_way_in
from services.cli.observe import Observed, observing
from services.cli.observe_prometheus import require_prometheus
from services.cli.ports import require_free
from services.cli.settings import CliSettings
from services.cli.stale_sockets import remove_stale_sockets
from services.cli.supervisor import ManagedProcess, ProcessSpec
from services.contracts.document import Document
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.fleet_security import is_loopback

logger = logging.getLogger(__name__)


class UpOptions(Document):
    """What a person may choose for a local fleet.

    Attributes:
        grpc_port, metrics_port: 0 takes free ones.
        generation: serve as this generation (a simulation); "" detects the device.
        ray_address: a Ray cluster to serve on; "" starts one on this host.
        host: where controller and gateway listen; other than loopback, for replicas and clients
            of other hosts.
        is_observed: start Prometheus beside it, and Grafana where that is installed.
        observe_port: of Prometheus; 0 takes a free one.
        num_gateway_workers: gateway processes on the port; None leaves it to the gateway's own
            settings.
    """

    grpc_port: int = 8001
    metrics_port: int = 8002
    generation: str = ""
    ray_address: str = ""
    host: str = "127.0.0.1"
    is_observed: bool = False
    observe_port: int = 9090
    num_gateway_workers: int | None = None

    @model_validator(mode="after")
    def _is_simulated_here_alone(self) -> Self:
        if self.generation and self.ray_address:
            raise InvalidRequestError(
                "--generation simulates one on this host's own Ray, and --ray-address joins a "
                "cluster whose nodes say theirs (ray start --labels); leave one of them out"
            )
        return self


class LocalFleet:
    """Controller and gateway as children; use as a context manager, which stops them.

    Attributes:
        held: what ends with the fleet, the last first.
    """

    def __init__(self, settings: CliSettings, options: UpOptions, *, linger_s: float = 5.0) -> None:
        """Nothing runs yet; `linger_s` is for processes that others of this fleet began."""
        self._settings = settings
        self._options = options
        self._linger_s = linger_s
        self._processes: dict[str, ManagedProcess] = {}
        self._deaths: SimpleQueue[str] = SimpleQueue()
        self._running: RunningFleet | None = None
        self.held = ExitStack()

    def __enter__(self) -> Self:
        """Take the place of this host's fleet; nothing runs yet.

        Raises:
            InvalidRequestError: a fleet runs here already, a port is in use, or it is to be
                observed and Prometheus is not installed.
        """
        require_way_in(self._settings)
        if self._options.is_observed:
            require_prometheus()
        run_dir = self._settings.run_dir
        self.held.enter_context(fleet_lock(run_dir))
        try:
            self._require_free_ports()
        except InvalidRequestError:
            self.held.close()  # a failed __enter__ has no __exit__
            raise
        self._settings = self._settings.with_fleet_token()
        # Before the start too: whoever ran here last may have been killed.
        remove_stale_sockets(run_dir)
        self.held.callback(remove_stale_sockets, run_dir)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop what runs: the processes in the reverse order of their start.

        Then whatever they left: Ray's agents have been seen to outlive its daemon by a minute.
        """
        with ExitStack() as open_files:
            begun = _pid_fds(_descendants(), open_files)
            try:
                self.held.close()
            finally:
                # A second Ctrl-C or SIGTERM ends the close, and must not let them live on.
                _end(begun, self._linger_s)

    def start(self) -> None:
        """Start both and publish where they listen.

        Raises:
            NotReadyError: a process did not start; the message holds its log's tail.
        """
        # `smelt down` sends SIGTERM; it unwinds as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        controller, gateway = self._start_processes()
        self._running = RunningFleet(
            supervisor_pid=os.getpid(),
            controller=controller["address"],
            grpc_address=f"{self._options.host}:{gateway['grpc_port']}",
            metrics_address=f"{self._options.host}:{gateway['metrics_port']}",
            controller_metrics_address=f"{self._options.host}:{controller['metrics_port']}",
            store_url=self._settings.store_url,
            num_gateway_workers=gateway["num_workers"],
        )
        if self._options.is_observed:
            self._running = self._observed(self._running)
        write_fleet(self._settings.run_dir, self._running)
        for name in self._processes:
            self._watch(name)

    @property
    def running(self) -> RunningFleet:
        """Where the fleet listens."""
        if self._running is None:
            raise NotReadyError("the fleet is not started")
        return self._running

    def wait_model_ready(self, name: str, timeout_s: float) -> None:
        """Return once the newest version of a model serves and the gateway can ask it.

        Raises:
            NotReadyError: the replicas failed (the message holds why) or took too long.
        """
        for snapshot in watch_fleet(self.running.controller, timeout_s, self._settings):
            versions = [model for model in snapshot.models if model.name == name]
            newest = max(versions, key=lambda model: model.version, default=None)
            if newest is not None and newest.state == "UNAVAILABLE":
                raise NotReadyError(f"model '{name}': {newest.reason}")
            if newest is not None and newest.state == "READY":
                break
        wait_served(self._settings, self.running.grpc_address, name, timeout_s)

    def wait_settled(self, timeout_s: float) -> None:
        """Return once no model is loading any more, and the gateway can ask those that serve.

        Raises:
            NotReadyError: the time ran out; models may load for longer, and the fleet serves on.
        """
        # The first look at the store; before it, nobody knows what there is to load.
        tell_fleet(self._settings)
        for snapshot in watch_fleet(self.running.controller, timeout_s, self._settings):
            if all(model.state != "LOADING" for model in snapshot.models):
                for name in {model.name for model in snapshot.models if model.state == "READY"}:
                    wait_served(self._settings, self.running.grpc_address, name, timeout_s)
                return

    def serve_until_stopped(self) -> NoReturn:
        """Block, starting again whatever dies, until KeyboardInterrupt.

        Raises:
            NotReadyError: a process died in its first seconds.
        """
        while True:
            name = self._deaths.get()
            process = self._processes[name]
            if process.is_hopeless():
                raise NotReadyError(f"{name} died at once\n{process.log_tail()}")
            logger.warning("%s died and is started again; its log: %s", name, process.log_path)
            process.start()
            self._watch(name)

    def _require_free_ports(self) -> None:
        require_free(self._options.grpc_port, "--grpc-port", self._options.host)
        require_free(self._options.metrics_port, "--metrics-port", self._options.host)
        if self._options.is_observed:
            require_free(self._options.observe_port, "--observe-port")

    def _start_processes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What controller and gateway said when they were ready."""
        controller = self._add("controller", self._controller_spec())
        said = controller.start()
        # A controller that is started again must be where the gateway looks for it.
        controller.update_settings(listen=said["address"], metrics_port=said["metrics_port"])
        gateway = self._add("gateway", self._gateway_spec(said["address"]))
        bound = gateway.start()
        gateway.update_settings(grpc_port=bound["grpc_port"], metrics_port=bound["metrics_port"])
        return said, bound

    def _observed(self, running: RunningFleet) -> RunningFleet:
        """The fleet with its observers started."""
        observers = self.held.enter_context(
            observing(
                self._settings.run_dir,
                Observed(
                    security=self._settings,
                    controller=running.controller,
                    gateway_metrics=running.metrics_address,
                    controller_metrics=running.controller_metrics_address,
                ),
                port=self._options.observe_port,
                scrape_interval_s=self._settings.scrape_interval_s,
            )
        )
        return running.model_copy(
            update={
                "prometheus_url": observers.prometheus_url,
                "grafana_url": observers.grafana_url,
                "boards_hint": observers.hint,
            }
        )

    def _add(self, name: str, spec: ProcessSpec) -> ManagedProcess:
        log_path: Path = self._settings.run_dir / f"{name}.log"
        process = ManagedProcess(spec, log_path, self._settings.start_timeout_s)
        self._processes[name] = process
        # The gateway, added last, stops first: no request meets a fleet without replicas.
        self.held.callback(process.stop)
        return process

    def _watch(self, name: str) -> None:
        def wait() -> None:
            self._processes[name].wait()
            self._deaths.put(name)

        threading.Thread(target=wait, name=f"watch-{name}", daemon=True).start()

    def _controller_spec(self) -> ProcessSpec:
        host = self._options.host
        return ProcessSpec(
            module="services.controller",
            env_prefix="SMELT_CONTROLLER_",
            settings={
                "store_url": self._settings.store_url,
                "cache_dir": self._settings.cache_dir,
                "run_dir": self._settings.run_dir,
                "generation_override": self._options.generation,
                "ray_address": self._options.ray_address or "local",
                "listen": f"{host}:0",
                "metrics_host": host,
                # Each replica's host has an address of its own.
                "replica_host": "127.0.0.1" if is_loopback(host) else "0.0.0.0",  # noqa: S104
                **self._settings.fleet_security,
            },
        )

    def _gateway_spec(self, controller: str) -> ProcessSpec:
        workers = self._options.num_gateway_workers
        return ProcessSpec(
            module="services.gateway",
            env_prefix="SMELT_GATEWAY_",
            settings={
                "controller": controller,
                "grpc_host": self._options.host,
                "grpc_port": self._options.grpc_port,
                "metrics_host": self._options.host,
                "metrics_port": self._options.metrics_port,
                **({} if workers is None else {"workers": workers}),
                **self._settings.fleet_security,
            },
        )


def _descendants() -> list[psutil.Process]:
    """All that this process began; none where too many files are open to list them."""
    try:
        return psutil.Process().children(recursive=True)
    except (OSError, psutil.Error):
        return []


def _pid_fds(processes: Iterable[psutil.Process], open_files: ExitStack) -> set[int]:
    """A file for each of these processes that can be had."""
    found = set()
    for process in processes:
        # It is gone, or too many files are open; the rest is to be stopped all the same.
        with suppress(OSError):
            found.add(pid_fd := os.pidfd_open(process.pid))
            open_files.callback(os.close, pid_fd)
    return found


def _end(pid_fds: set[int], linger_s: float) -> None:
    """Kill those that linger; one more signal to us ends the waiting alone."""
    left = pid_fds
    try:
        left = _still_running(pid_fds, linger_s)
    finally:
        for pid_fd in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pid_fd, signal.SIGKILL)


def _still_running(pid_fds: set[int], timeout_s: float) -> set[int]:
    """Those that have not ended after a while; one that only waits to be reaped has.

    psutil waits until it is reaped, and the first process of a container may never do that.
    """
    until_s, left = time.monotonic() + timeout_s, set(pid_fds)
    poll = select.poll()
    for pid_fd in left:
        poll.register(pid_fd, select.POLLIN)
    while left and (left_s := until_s - time.monotonic()) > 0:
        for pid_fd, _ in poll.poll(left_s * 1000):
            poll.unregister(pid_fd)
            left.discard(pid_fd)
    return left
