"""A fleet on this host: `LocalFleet` owns Ray, controller and gateway for `smelt up`."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from services.cli.fleet.child_process import ChildProcess, ProcessSpec
from services.cli.fleet.control_client import reconcile, wait_served, watch_fleet
from services.cli.fleet.descendants import descendants, end, pid_fds
from services.cli.fleet.fleet_file import RunningFleet, fleet_lock, write_fleet
from services.cli.fleet.ports import is_free, require_free
from services.cli.fleet.process_specs import controller_spec, gateway_spec, ray_spec
from services.cli.fleet.supervised_process import SupervisedProcess
from services.cli.fleet.up_options import UpOptions
from services.cli.logs.rotation import bound, own_logs
from services.cli.observe.local_prometheus import require_prometheus
from services.cli.observe.observers import start_observers
from services.cli.requests.gateway_client import require_way_in
from services.cli.settings import CliSettings
from services.contracts.errors import InvalidRequestError, NotReadyError
from services.contracts.text.moments import utc_now
from services.controller.platform.ray.session_logs import end_sessions, note_session
from services.controller.settings import ADDRESS_ON_INPUT
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)

_WITHDRAWAL = "services.controller.withdraw"
_WITHDRAWAL_TIMEOUT_S = 120.0
_LOG_CHECK_S = 5.0
# The place of a part, how many there are, and what it is.
OnPart = Callable[[int, int, str], None]


class StopRequested(KeyboardInterrupt):
    """SIGTERM came: somebody asked for the fleet's end elsewhere."""


def _stop(*_: object) -> NoReturn:
    raise StopRequested


def _ignore(place: int, total: int, what: str) -> None:
    """For callers that show no progress."""


class LocalFleet:
    """Ray, controller and gateway as children; use as a context manager, which stops them.

    Attributes:
        held: what ends with the fleet, the last first.
    """

    def __init__(self, settings: CliSettings, options: UpOptions, *, linger_s: float = 5.0) -> None:
        """Nothing runs yet.

        Args:
            settings: folders of the fleet's files.
            options: of `smelt up`: ports, the generation that is served, and what runs beside it.
            linger_s: how long processes that these start themselves may take to end.
        """
        self._settings = settings
        self._options = options
        self._linger_s = linger_s
        self._processes: list[SupervisedProcess] = []
        self._running: RunningFleet | None = None
        self._has_controller = self._is_stop_requested = False
        self._noting = threading.Lock()
        self._on_part: OnPart = _ignore
        self._listen = f"{options.host}:0"
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
        former = self.held.enter_context(fleet_lock(run_dir))
        if former and is_free(former.controller, self._options.host):
            # Its supervisor was killed; replicas of a cluster look for the controller there.
            self._listen = former.controller
        try:
            self._require_free_ports()
        except InvalidRequestError:
            self.held.close()  # a failed __enter__ has no __exit__
            raise
        self._settings = self._settings.with_fleet_token()
        # Before the start too: the last fleet here may have been killed.
        remove_stale_sockets(run_dir)
        end_sessions(run_dir)
        self.held.callback(remove_stale_sockets, run_dir)
        # `smelt down` sends SIGTERM from now on; it unwinds as Ctrl-C does.
        signal.signal(signal.SIGTERM, _stop)
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *_: object) -> None:
        """Stop what runs: the processes in the reverse order of their start.

        Then what they left running: Ray's agents may outlive its daemon by a minute.
        At last the folders of the Ray that this fleet started.
        """
        self._is_stop_requested = exc_type is not None and issubclass(exc_type, KeyboardInterrupt)
        with ExitStack() as open_files:
            open_files.callback(end_sessions, self._settings.run_dir)
            begun = pid_fds(descendants(), open_files)
            try:
                self.held.close()
            finally:
                # A second Ctrl-C or SIGTERM ends the close, and must not leave them running.
                end(begun, self._linger_s)

    def start(self, on_part: OnPart = _ignore) -> None:
        """Start all and publish where they listen; `on_part` is called before each process.

        Raises:
            NotReadyError: a process did not start; the message holds its log's tail.
        """
        self._on_part = on_part
        controller, gateway = self._start_processes()
        http_port = gateway.get("http_port")
        self._running = RunningFleet(
            supervisor_pid=os.getpid(),
            controller=controller["address"],
            grpc_address=f"{self._options.host}:{gateway['grpc_port']}",
            http_address=f"{self._options.host}:{http_port}" if http_port else "",
            metrics_address=f"{self._options.host}:{gateway['metrics_port']}",
            controller_metrics_address=f"{self._options.host}:{controller['metrics_port']}",
            store_url=self._settings.store_url,
            num_gateway_workers=gateway["num_workers"],
        )
        if self._options.is_observed:
            self._running = start_observers(
                self._settings, self._running, port=self._options.observe_port, held=self.held
            )
        write_fleet(self._settings.run_dir, self._running)
        # From here on: a start that fails before is the command's failure, and is not retried.
        for process in self._processes:
            process.supervise()

    @property
    def settings(self) -> CliSettings:
        """Those of commands for this fleet: with its token, once it is entered."""
        return self._settings

    @property
    def running(self) -> RunningFleet:
        """Where the fleet listens; raises NotReadyError before it is started."""
        if self._running is None:
            raise NotReadyError("the fleet is not started")
        return self._running

    def wait_model_ready(self, name: str, timeout_s: float) -> None:
        """Return once a replica of a model's newest version serves and the gateway can ask it.

        Raises:
            NotReadyError: the replicas failed (the message holds why) or took too long.
        """
        for snapshot in watch_fleet(self.running.controller, timeout_s, self._settings):
            versions = [model for model in snapshot.models if model.name == name]
            newest = max(versions, key=lambda model: model.version, default=None)
            # Not when all are, which Serve shows up to a second later: one can be asked.
            if newest is not None and _is_served(newest, snapshot):
                break
            if newest is not None and newest.state == "UNAVAILABLE":
                raise NotReadyError(f"model '{name}': {newest.reason}")
        wait_served(self._settings, self.running.grpc_address, name, timeout_s)

    def wait_settled(self, timeout_s: float, on_part: OnPart = _ignore) -> None:
        """Return once no model is loading any more, and the gateway can ask those that serve.

        `on_part` is called when a model stops loading.

        Raises:
            NotReadyError: the time ran out; models may load for longer, and the fleet serves on.
        """
        # The controller's first reading of the store; before it, the fleet lists no models.
        reconcile(self.running.controller, self._settings)
        before = 0
        for snapshot in watch_fleet(self.running.controller, timeout_s, self._settings):
            loading = [model.name for model in snapshot.models if model.state == "LOADING"]
            if len(loading) != before:
                num = len(snapshot.models)
                before = len(loading)
                on_part(num - before, num, f"loading {', '.join(loading)}" if loading else "")
            if not loading:
                for name in {model.name for model in snapshot.models if model.state == "READY"}:
                    wait_served(self._settings, self.running.grpc_address, name, timeout_s)
                return

    def serve_until_stopped(self) -> NoReturn:
        """Bound the logs until KeyboardInterrupt; threads start again whatever ends."""
        while True:
            for path in own_logs(self._settings.run_dir):
                bound(path)
            threading.Event().wait(_LOG_CHECK_S)

    def _require_free_ports(self) -> None:
        require_free(self._options.grpc_port, "--grpc-port", self._options.host)
        if self._options.http_port is not None:
            require_free(self._options.http_port, "--http-port", self._options.host)
        require_free(self._options.metrics_port, "--metrics-port", self._options.host)
        if self._options.is_observed:
            require_free(self._options.observe_port, "--observe-port")

    def _start_processes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What controller and gateway announced when they were ready."""
        settings = self._settings
        options = self._options
        if options.ray_address:
            self.held.callback(self._withdraw)
        else:
            ray = self._add("ray", ray_spec(options))
        ray_address = options.ray_address or ADDRESS_ON_INPUT
        spec = controller_spec(settings, options, ray_address=ray_address, listen=self._listen)
        controller = self._add("controller", spec)
        if options.ray_address:
            self._has_controller = True  # and it deploys, before there is a gateway
            bound = controller.start()
        else:
            # Its imports take a second, and Ray's own start takes three.
            bound = controller.start(lambda: self._joined(controller, ray.start()))
            # One that had joined the former Ray is of no use with the new one.
            ray.on_restart = partial(self._rejoin, controller)
        # A controller that is started again must listen where the gateway connects.
        controller.update_settings(listen=bound["address"], metrics_port=bound["metrics_port"])
        gateway = self._add("gateway", gateway_spec(settings, options, bound["address"]))
        ports = gateway.start()
        # A gateway that is started again must listen where its clients connect, too.
        kept = {key: value for key, value in ports.items() if key.endswith("_port")}
        gateway.update_settings(**kept)
        return bound, ports

    def _joined(self, controller: SupervisedProcess, ray: dict[str, Any]) -> str:
        """The address of a Ray that is up, also for when the controller is started again."""
        address: str = ray["address"]
        note_session(self._settings.run_dir, Path(ray["session"]))
        controller.update_settings(ray_address=address)
        return address

    def _rejoin(self, controller: SupervisedProcess, ray: dict[str, Any]) -> None:
        self._joined(controller, ray)
        controller.restart()

    def _withdraw(self) -> None:
        """Leave nothing on a cluster that goes on, but for the next start where this one failed."""
        settings = self._settings
        options = self._options
        ray_address = self._options.ray_address
        if not self._has_controller:
            return
        if self._running is None and not self._is_stop_requested:
            logger.warning(
                "what was deployed on Ray at %s stays there: start again, then run: smelt down",
                ray_address,
            )
            return
        spec = controller_spec(settings, options, ray_address=ray_address, listen=self._listen)
        spec = replace(spec, module=_WITHDRAWAL)
        log_path = settings.run_dir / "withdraw.log"
        if not ChildProcess(spec, log_path, 0.0).run(_WITHDRAWAL_TIMEOUT_S):
            logger.warning(
                "replicas and build tasks may be left on Ray at %s: %s", ray_address, log_path
            )

    def _add(self, name: str, spec: ProcessSpec) -> SupervisedProcess:
        process = SupervisedProcess(
            name,
            spec,
            self._settings.run_dir / f"{name}.log",
            self._settings.start_timeout_s,
            on_trouble=self._note,
        )
        self._processes.append(process)
        self._on_part(len(self._processes), 2 if self._options.ray_address else 3, name)
        # The gateway, added last, stops first: no request meets a fleet without replicas.
        self.held.callback(process.close)
        return process

    def _note(self, name: str, fault: str) -> None:
        """Publish that a process is away, or with "" that it is there again."""
        with self._noting:
            if self._running is None:
                return
            self._running = self._running.with_trouble(name, fault, utc_now().isoformat())
            write_fleet(self._settings.run_dir, self._running)


def _is_served(model: fleet.ServedModel, snapshot: fleet.FleetSnapshot) -> bool:
    return any(
        (each.model_name, each.model_version) == (model.name, model.version)
        and each.state == fleet.REPLICA_STATE_READY
        for each in snapshot.replicas
    )


def remove_stale_sockets(folder: Path) -> None:
    """Unlink each socket of replicas that no process listens on; what is in use stays."""
    for path in folder.glob("*.sock"):
        if path.is_socket() and _is_stale(path):
            path.unlink(missing_ok=True)


def _is_stale(path: Path) -> bool:
    """Whether the kernel lists no listener; a process id in a name may be another's by now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener whose queue is full must not be waited for.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
