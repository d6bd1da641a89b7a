"""A whole fleet of this host, driven by the command `smelt` as a person would."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.fleet.control_client import watch_fleet
from services.cli.settings import CliSettings
from services.contracts.errors import NotReadyError
from services.pb import fleet_v1_pb2 as pb

SMELT = str(Path(sys.executable).with_name("smelt"))
# Generous, because it only ends a test that fails: several fleets may share two cores.
WAIT_S = 240.0
Condition = Callable[[pb.FleetSnapshot], bool]
Replica = dict[str, Any]


class LocalFleet:
    """One SMELT_HOME with, once `up` was called, its controller, gateway and replicas.

    Attributes:
        running: what `smelt up --json` printed.
        home: its SMELT_HOME.
    """

    def __init__(self, home: Path, **more: str) -> None:
        """`more` is added to the environment of the commands."""
        self.home, self._more = home, more
        self.running: dict[str, Any] = {}

    def smelt(self, *arguments: str) -> Any:
        """Run the command with --json and return what it printed; it must succeed."""
        done = self.smelt_process(*arguments, "--json")
        assert done.returncode == 0, f"smelt {arguments}: {done.stderr}\n{self.logs()}"
        return json.loads(done.stdout)

    @property
    def environment(self) -> dict[str, str]:
        """That of its commands."""
        own = {
            "SMELT_HOME": str(self.home),
            "SMELT_NUM_THREADS": "1",
            "SMELT_BENCHMARK_S": "0.02",
            "SMELT_CONTROLLER_REPLICA_NUM_THREADS": "1",
            # Tests say themselves what is built, and when.
            "SMELT_CONTROLLER_BUILDS": "false",
        }
        return dict(os.environ) | own | self._more

    def smelt_process(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the command and return how it ended."""
        return subprocess.run(
            [SMELT, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def add(self, name: str, path: Path, recipe: Path, *kinds: str) -> None:
        """Add a model and build its engines of these kinds, onnxruntime by default."""
        self.smelt("models", "add", name, str(path), "--recipe", str(recipe))
        self.build(name, *(kinds or ("onnxruntime",)))

    def build(self, name: str, *kinds: str) -> Any:
        """Build engines."""
        return self.smelt("build", name, *(word for kind in kinds for word in ("--kind", kind)))

    def up(self, *arguments: str) -> None:
        """Start it on free ports."""
        ports = ("--grpc-port", "0", "--metrics-port", "0")
        self.running = self.smelt("up", *ports, *arguments, "--detach")

    def down(self) -> None:
        """Stop it."""
        self.smelt("down")
        self.running = {}

    @property
    def settings(self) -> CliSettings:
        """Those of its commands: home, and with it the control plane's token."""
        return CliSettings(home=self.home)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return str(self.running["grpc_address"])

    def replicas(self, model: str) -> list[Replica]:
        """The ready replicas of a model, by `smelt status --json`."""
        found: list[Replica] = self.smelt("status")["replicas"]
        return [r for r in found if r["model"] == model and r["state"] == "READY"]

    def wait_until(self, condition: Condition) -> pb.FleetSnapshot:
        """The first snapshot of the controller's stream that fulfils a condition."""
        last = None
        try:
            for last in watch_fleet(self.running["controller"], WAIT_S, self.settings):
                if condition(last):
                    return last
        except NotReadyError as error:
            raise AssertionError(f"{error}\nlast snapshot: {last}\n{self.logs()}") from error
        raise AssertionError("the controller ended the stream")

    def wait_ready(self, model: str, num_replicas: int, version: int = 1) -> None:
        """Return once so many replicas of a model version are ready and the gateway knows one."""
        self.wait_until(lambda seen: len(ready_in(seen, model, version)) == num_replicas)
        with grpc.insecure_channel(self.address) as channel:
            request = health_pb2.HealthCheckRequest(service=model)
            changes = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=WAIT_S)
            for change in changes:
                if change.status == health_pb2.HealthCheckResponse.SERVING:
                    return

    def child(self, module: str) -> psutil.Process:
        """The supervisor's child that runs a module now."""
        supervisor = psutil.Process(self.running["supervisor_pid"])
        (found,) = [child for child in supervisor.children() if module in child.cmdline()]
        return found

    def processes(self) -> list[psutil.Process]:
        """Every process of the fleet: the supervisor and all that descend from it."""
        supervisor = psutil.Process(self.running["supervisor_pid"])
        return [supervisor, *supervisor.children(recursive=True)]

    def logs(self) -> str:
        """The ends of all its logs, for messages of tests that fail."""
        paths = sorted((self.home / "run").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in paths)


def ready_in(snapshot: pb.FleetSnapshot, model: str, version: int = 1) -> list[pb.ReplicaReport]:
    """The replicas of a model version that take requests."""
    return [
        replica
        for replica in snapshot.replicas
        if (replica.model_name, replica.model_version) == (model, version)
        and replica.state == pb.REPLICA_STATE_READY
    ]


def still_running(processes: list[psutil.Process]) -> list[str]:
    """What of these processes lives; one that only waits to be reaped does not."""
    # Ray's agents end last: for 60 s they try to report to a GCS that ended that the raylet did.
    _, left = psutil.wait_procs(processes, timeout=120)
    living = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    return [f"{process.pid} {process.name()}" for process in living]


@contextmanager
def fleet_home(**more: str) -> Iterator[LocalFleet]:
    """A fleet that is not up yet, with more of an environment; stopped at the end if it is up.

    Not in pytest's own temporary folder: the path of a unix socket holds 107 bytes.
    """
    home = Path(tempfile.mkdtemp(prefix="smelt-"))
    fleet = LocalFleet(home, **more)
    try:
        yield fleet
    finally:
        # Also one whose start was interrupted: it is detached, so nothing else ends it.
        fleet.smelt_process("down")
        shutil.rmtree(home)
