"""A fleet on a real Ray cluster of several nodes, whose hardware a test changes.

The nodes are raylets of this one machine. Each publishes what its probe says, and simulates a
generation through the one label that is made for it; controller and gateway are processes.
"""

import asyncio
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import numpy as np

from services.cli.fleet.child_process import ChildProcess, ProcessSpec
from services.cli.fleet.control_client import watch_fleet
from services.contracts.errors import NotReadyError
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.hardware.facts import X86_ISA_FLAGS, DeviceFacts
from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.engines.device.device_probe import probe_device
from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.load import Load
from tests.integration.fleet.local_fleet import LocalFleet
from tests.integration.fleet.onnx_files import write_recipe, write_scaled
from tests.integration.hardware_change.cluster_keeper import Cluster, ray_cluster

MODEL, FACTOR, WIDTH = "scaled", 3.0, 64
# Generous, because it only ends a test that fails.
WAIT_S = 240.0
# Between a caller's requests: the machine that is loaded is the one that builds.
_PAUSE_S = 0.02
_POLL_S = 0.05
_START_S = 120.0
_CONTROLLER = {
    "resync_s": 1.0,
    "withdraw_after_s": 2.0,
    "replica_num_threads": 1,
    "build_arguments": "--benchmark-s 0 --benchmark-iterations 3",
}
Condition = Callable[[list[pb.ReplicaReport]], bool]


class PacedLoad(Load):
    """Callers who rest between two requests.

    Attributes:
        pause_s: for so long.
    """

    pause_s = 0.0

    async def _call(self, client: Any) -> str:
        outcome = await super()._call(client)
        await asyncio.sleep(self.pause_s)
        return outcome


class Callers:
    """A load on a thread of its own, as waiting for nodes and events holds up the test's."""

    def __init__(self, load: PacedLoad, num_callers: int) -> None:
        """Nothing is called yet; use it as a context manager."""
        self.load, self._num_callers = load, num_callers
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="callers")

    def __enter__(self) -> Self:
        """Begin to call."""
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Await the calls that began, and end."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def wait_for(self, outcome: str, num_more: int) -> None:
        """Return when so many more calls had this outcome."""
        waiting = self.load.wait_for(outcome, num_more)
        asyncio.run_coroutine_threadsafe(waiting, self._loop).result()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._call())

    async def _call(self) -> None:
        async with self.load.running(self._num_callers):
            await self._is_over.wait()


class ChangingFleet:
    """Cluster, controller, gateway and store of one test module.

    Attributes:
        host_generation: that of this machine, which the first node says.
        address: where clients connect.
    """

    def __init__(self, home: Path, cluster: Cluster) -> None:
        """Nothing runs but the cluster."""
        self.host_generation = probe_device().generation
        self.address = ""
        self._home, self._cluster = home, cluster
        self._listens_at, self._metrics_port = "", 0
        (home / "run").mkdir()
        self._controller = self._process(
            "controller",
            _CONTROLLER
            | {
                "store_url": home / "store",
                "cache_dir": home / "cache",
                "run_dir": home / "run",
                "ray_address": cluster.address,
            },
        )
        self._gateway = self._process("gateway", {"grpc_port": 0, "metrics_port": 0})

    def start(self, num_replicas: int) -> None:
        """Publish the model, start controller and gateway, and wait until the first node serves."""
        source = write_scaled(self._home / "scaled.onnx", FACTOR)
        recipe = write_recipe(self._home / "recipe.yaml", num_replicas, features=WIDTH)
        # A replica lets requests wait for companions, so that many are in it when it is killed.
        text = recipe.read_text().replace("max_queue:", "max_delay_ms: 20, max_queue:")
        recipe.write_text(text + "kinds: [onnxruntime]\n")
        cli = LocalFleet(self._home)
        cli.smelt("models", "add", MODEL, str(source), "--recipe", str(recipe))
        self.start_controller()
        self._gateway.update_settings(controller=self._listens_at)
        bound = self._gateway.start()
        self.address, self._metrics_port = f"127.0.0.1:{bound['grpc_port']}", bound["metrics_port"]

    def stop(self) -> None:
        """Stop both processes; the cluster is its owner's to stop."""
        self._gateway.stop()
        self._controller.stop()

    def start_controller(self) -> None:
        """Start it, always at the same address: there replicas and gateways look for it."""
        self._listens_at = self._controller.start()["address"]
        self._controller.update_settings(listen=self._listens_at)

    def kill_controller(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        os.kill(self._controller.pid, signal.SIGKILL)
        self._controller.wait()

    def add_node(self, generation: str) -> int:
        """A node that simulates a generation joins; returns its number."""
        return self._cluster.add_node(node_labels(generation))

    def remove_node(self, node: int) -> None:
        """The node's processes are killed at once."""
        self._cluster.remove_node(node)

    def wait_until(self, condition: Condition) -> list[pb.ReplicaReport]:
        """The first ready replicas of the controller's stream that fulfil a condition."""

        def ready(reports: Sequence[pb.ReplicaReport]) -> list[pb.ReplicaReport]:
            return [r for r in reports if r.state == pb.REPLICA_STATE_READY]

        return ready(self._wait_replicas(lambda reports: condition(ready(reports))))

    def wait_attached(self, generation: str) -> None:
        """Return as soon as a replica on a generation speaks; it may load still."""
        self._wait_replicas(lambda reports: any(generation in r.replica_id for r in reports))

    def _wait_replicas(self, condition: Condition) -> list[pb.ReplicaReport]:
        seen: list[pb.ReplicaReport] = []
        try:
            for snapshot in watch_fleet(self._listens_at, WAIT_S):
                seen = list(snapshot.replicas)
                if condition(seen):
                    return seen
        except NotReadyError as error:
            raise AssertionError(f"{error}\nattached: {seen}\n{self.logs()}") from error
        raise AssertionError("the controller ended the stream")

    def wait_event(self, kind: EventKind, generation: str) -> None:
        """Return as soon as the trail has an event of a kind for a generation."""
        self._wait_store(lambda: kind in [event.kind for event in self.events(generation)])

    def wait_proof(self, generation: str) -> None:
        """Return as soon as the store has a proven engine for a generation."""
        self._wait_store(lambda: self._is_proven(generation))

    def events(self, generation: str) -> list[Event]:
        """The trail of a generation."""
        events = (event for _, event in self._registry().events_after(EventPosition()))
        return [event for event in events if event.generation == generation]

    def callers(self, num_callers: int, pause_s: float = _PAUSE_S) -> Callers:
        """Callers who check every answer."""
        load = PacedLoad(self.address, MODEL, _is_correct, WIDTH)
        load.pause_s = pause_s
        return Callers(load, num_callers)

    def num_retried(self) -> int:
        """Requests that the gateway sent to a second replica."""
        with urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=WAIT_S) as page:
            text = page.read().decode()
        found = re.findall(r"^smelt_request_retries_total{.*} (.*)$", text, re.MULTILINE)
        return int(sum(map(float, found)))

    def logs(self) -> str:
        """The ends of both logs, for messages of tests that fail."""
        paths = sorted((self._home / "run").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in paths)

    def _wait_store(self, is_so: Callable[[], bool]) -> None:
        """The store tells nobody of changes, so it is read again and again."""
        limit_s = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < limit_s, self.logs()
            time.sleep(_POLL_S)

    def _is_proven(self, generation: str) -> bool:
        return any(
            engine.manifest.key.generation == generation
            and engine.proof.outcome is ProofOutcome.PASSED
            for engine in self._registry().engines()
        )

    def _registry(self) -> Registry:
        return Registry(open_store(str(self._home / "store")), self._home / "cache")

    def _process(self, name: str, settings: dict[str, Any]) -> ChildProcess:
        spec = ProcessSpec(
            module=f"services.{name}", env_prefix=f"SMELT_{name.upper()}_", settings=settings
        )
        return ChildProcess(spec, self._home / "run" / f"{name}.log", _START_S)


def node_labels(generation: str) -> dict[str, str]:
    """What a node that simulates a generation publishes."""
    facts = probe_device(override=generation)
    return NodeClass.from_facts(facts).labels() | {SIMULATED_LABEL: generation}


def other_generations(own: str) -> list[str]:
    """Generations that this machine is not of, the oldest first."""
    known = [f"cpu-x86_64-{isa}" for isa in X86_ISA_FLAGS if isa != "v2"]
    return [generation for generation in known if generation != own]


def generation_of(replica: pb.ReplicaReport) -> str:
    """The generation that a replica serves on."""
    return DeviceFacts.from_json(replica.device_facts_json).generation


def on(generation: str, *, num_ready: int, is_proven: bool = False) -> Condition:
    """Exactly so many replicas serve on a generation, if asked for on its own proven engine."""

    def is_so(ready: list[pb.ReplicaReport]) -> bool:
        here = [replica for replica in ready if generation_of(replica) == generation]
        on_own = [r for r in here if r.engine_digest and r.engine_generation == generation]
        return len(here) == num_ready and (not is_proven or len(on_own) == num_ready)

    return is_so


def _is_correct(x_BF: Array, y_BF: Array) -> bool:
    return bool(np.array_equal(y_BF, x_BF * np.float32(FACTOR)))


@contextmanager
def changing_fleet(num_replicas: int) -> Iterator[ChangingFleet]:
    """A fleet with one node, of this machine's own generation.

    Not in pytest's own temporary folder: the path of a unix socket holds 107 bytes.
    """
    labels = NodeClass.from_facts(probe_device()).labels()
    with (
        tempfile.TemporaryDirectory(prefix="smelt-", ignore_cleanup_errors=True) as home,
        ray_cluster(labels) as cluster,
    ):
        fleet = ChangingFleet(Path(home), cluster)
        try:
            fleet.start(num_replicas)
            yield fleet
        finally:
            fleet.stop()
