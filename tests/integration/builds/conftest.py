"""A tiny model in a local store, a machine that may be several, and a launcher of real children."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler_worker.devices import local_devices, main_device
from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.interfaces import BuildTask, NodePool, TaskState, TaskStatus
from services.controller.platform.command import worker_arguments
from tests.conformance.tiny_model import draw_inputs, save_master, tiny_model
from tests.integration.compiler.conftest import RECIPE
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("--benchmark-s", "0", "--benchmark-iterations", "3", "--num-threads", "1")


@dataclass
class FakeNodes:
    """A NodeSource whose nodes the test adds and removes."""

    known: dict[str, NodePool] = field(default_factory=dict)

    def pools(self) -> list[NodePool]:
        return list(self.known.values())

    def add(self, facts: DeviceFacts, num_nodes: int = 1) -> NodeClass:
        node_class = NodeClass.from_facts(facts)
        self.known[facts.generation] = NodePool(
            node_class=node_class, source="file", num_nodes=num_nodes
        )
        return node_class


@dataclass
class ProcessLauncher:
    """A BuildLauncher of plain child processes; outlives the loops that use it, as Ray does.

    Attributes:
        where: options that point the compiler at the store of this test.
        environment: of the compiler, beside this process's own.
    """

    where: list[str]
    compiler: str = "this checkout"
    has_deadlines: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    launched: list[BuildTask] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def launch(self, task: BuildTask) -> None:
        if task.name not in self.processes:
            self.launched.append(task)
            self.processes[task.name] = self._start(task)

    def statuses(self) -> dict[str, TaskStatus]:
        return {name: _status(process) for name, process in self.processes.items()}

    def forget(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def wait(self) -> None:
        """Return when all that was launched has ended."""
        for process in self.processes.values():
            process.wait(timeout=240)

    def _start(self, task: BuildTask) -> subprocess.Popen[bytes]:
        simulated = [] if task.is_anywhere else ["--device-generation", task.node_class.generation]
        command = [sys.executable, "-m", "compiler_worker", *worker_arguments(task)]
        return subprocess.Popen(
            [*command, *simulated, *self.where],
            cwd=ROOT,
            env=os.environ | self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _status(process: subprocess.Popen[bytes]) -> TaskStatus:
    if process.poll() is None:
        return TaskStatus(state=TaskState.RUNNING)
    return TaskStatus(
        state=TaskState.ENDED,
        detail=f"exit code {process.returncode}",
        is_failed=process.returncode != 0,
    )


@dataclass(frozen=True)
class Place:
    """Where the store and the cache of a test are.

    Attributes:
        options: that point the compiler there.
    """

    store: Path
    cache: Path

    @property
    def options(self) -> list[str]:
        return ["--store-url", str(self.store), "--cache-dir", str(self.cache), *QUICK]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "store", tmp_path / "cache")


@pytest.fixture
def registry(place: Place) -> Registry:
    return Registry(open_store(str(place.store)), place.cache)


@pytest.fixture
def add_version(registry: Registry, tmp_path: Path) -> Callable[..., ModelVersion]:
    """Publishes the tiny model as `tiny`, by default for the quickest kind alone."""
    source = tmp_path / "source"
    source.mkdir()
    path = save_master(tiny_model(), source)
    samples = source / "samples.npz"
    np.savez(samples, allow_pickle=False, **draw_inputs(32, 12))
    master = open_master(OnnxFile(path=path), tmp_path / "master", lambda line: None)

    def add(
        kinds: tuple[EngineKind, ...] = (EngineKind.ONNXRUNTIME,), **recipe: Any
    ) -> ModelVersion:
        return registry.add_model_version(
            name="tiny",
            master=registry.publish_master(master),
            recipe=RECIPE.model_copy(update={"kinds": kinds} | recipe),
            source="tiny.onnx",
            source_fingerprint="0",
            samples=samples,
        )

    return add


@pytest.fixture
def here() -> DeviceFacts:
    """The machine that the test runs on."""
    return main_device(local_devices())


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes()


@pytest.fixture
def launcher(place: Place) -> Iterator[ProcessLauncher]:
    made = ProcessLauncher(place.options)
    yield made
    for name in list(made.processes):
        made.forget(name)
