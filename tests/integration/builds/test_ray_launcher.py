"""Build tasks on a real Ray cluster; its second node says that it is of another generation."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from compiler_worker.devices import local_devices, main_device
from services.cli.logs.log_files import LogPlaces
from services.cli.logs.log_lines import LogReader
from services.contracts.errors import InvalidRequestError
from services.contracts.events import EventKind
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.labels import SIMULATED_LABEL
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop
from services.controller.interfaces import BuildTask, NodePool, TaskState, TaskStatus
from services.controller.platform.ray.cluster_owner import check_owner, claim_cluster
from services.controller.platform.ray.ray_tasks import RayBuildLauncher
from tests.integration.builds.conftest import QUICK, ROOT, Place

AddVersion = Callable[..., ModelVersion]
SIMULATED = local_devices("cpu-x86_64-v3")
LIMIT_S = 120.0
POLL_S = 0.2
NICENESS = 10

# A controller that launches a task and is killed as soon as a node has taken it.
DOOMED = """
import os, signal, sys
import ray
from services.controller.platform.ray.ray_tasks import RayBuildLauncher
from services.controller.interfaces import BuildTask, TaskState
from services.contracts.hardware.node_class import NodeClass
address, store, cache, name, node_class = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
launcher = RayBuildLauncher(store_url=store, cache_dir=cache, extra_arguments=tuple(QUICK))
task = BuildTask(name=name, model="tiny", version=1, is_anywhere=False,
                 node_class=NodeClass.from_json(node_class.encode()))
launcher.launch(task)
while launcher.statuses()[name].state is not TaskState.RUNNING:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Any port: of one that is taken Ray forgets to close the socket it tried.
    head = {"num_cpus": 1, "include_dashboard": False, "dashboard_port": 0}
    made = Cluster(initialize_head=True, head_node_args=head)
    facts = SIMULATED[main_device(SIMULATED).parsed_generation.platform]
    labels = NodeClass.from_facts(facts).labels() | {SIMULATED_LABEL: facts.generation}
    # Ray does not count cores, but takes the given number: room for two builds.
    made.add_node(num_cpus=4, memory=16 * 2**30, labels=labels)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def simulated() -> DeviceFacts:
    return main_device(SIMULATED)


@pytest.fixture
def ray_launcher(cluster: Cluster, place: Place) -> Iterator[RayBuildLauncher]:
    launcher = RayBuildLauncher(
        store_url=str(place.store), cache_dir=str(place.cache), extra_arguments=QUICK
    )
    yield launcher
    for name in launcher.statuses():
        launcher.forget(name)


@pytest.mark.usefixtures("cluster")
def test_a_cluster_has_one_fleet_at_a_time() -> None:
    claim_cluster("s3://a", ["of somebody else"])
    for ours in ("smelt:m:1:cuda-sm90", "smelt-external:chat:1"):
        claim_cluster("s3://a", [ours])
        with pytest.raises(InvalidRequestError, match=r"fleet of store s3://a, .*on s3://b: stop"):
            claim_cluster("s3://b", [ours])
    check_owner("s3://a")
    # A fleet without applications is replaced; from then on it is refused.
    claim_cluster("s3://b", [])
    with pytest.raises(InvalidRequestError, match="fleet of store s3://b"):
        check_owner("s3://a")


def task_on(node_class: NodeClass, name: str) -> BuildTask:
    return BuildTask(name=name, model="tiny", version=1, node_class=node_class, is_anywhere=False)


def until_true(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait; neither Ray nor the process table tells anybody of a change, so they are asked."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(POLL_S)


def when(launcher: RayBuildLauncher, name: str, wanted: TaskState) -> TaskStatus:
    """The task's status once it is in a state."""
    until_true(lambda: launcher.statuses()[name].state is wanted, launcher.statuses)
    return launcher.statuses()[name]


def until_said(launcher: RayBuildLauncher, name: str, word: str) -> None:
    """Wait until a task's status has a word in it."""
    until_true(lambda: word in launcher.statuses()[name].detail, launcher.statuses)


def compilers(place: Place) -> list[psutil.Process]:
    """Processes that work on this test's store."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(place.store) in (process.info["cmdline"] or [])
        and "compiler_worker" in process.info["cmdline"]
    ]


def compiler_of(place: Place) -> psutil.Process:
    """The process that a task of this test runs, once it is there."""
    until_true(lambda: bool(compilers(place)), lambda: "no compiler runs")
    (compiler,) = compilers(place)
    return compiler


def test_a_build_outlives_the_controller_and_is_found_by_its_name(
    cluster: Cluster,
    place: Place,
    registry: Registry,
    add_version: AddVersion,
    simulated: DeviceFacts,
    ray_launcher: RayBuildLauncher,
) -> None:
    add_version()
    node_class = NodeClass.from_facts(simulated)
    program = DOOMED.replace("QUICK", repr(QUICK))
    words = [cluster.address, str(place.store), str(place.cache), "build-orphan"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, node_class.canonical_json().decode()],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == -9, done.stderr.decode()

    status = when(ray_launcher, "build-orphan", TaskState.ENDED)
    assert not status.is_failed, status.detail
    (engine,) = registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED
    assert engine.proof.device is not None
    assert engine.proof.device.generation == simulated.generation
    plan = registry.build_plan("tiny", 1, node_class)
    assert plan is not None
    assert plan.facts == engine.proof.device
    session = Path(ray.nodes()[0]["RayletSocketName"]).parents[1]
    written = LogPlaces(run_dir=place.store, ray_dir=session / "logs").files()
    lines = LogReader().read(file for file in written if file.is_of("build"))
    assert {line.record["level"] for line in lines} >= {"debug", "info"}
    assert any("onnxruntime fp32: " in line.text for line in lines)
    assert all(line.at for line in lines)
    ray_launcher.forget("build-orphan")
    assert ray_launcher.statuses() == {}


def test_a_task_without_a_node_waits_until_it_is_forgotten(
    simulated: DeviceFacts, ray_launcher: RayBuildLauncher
) -> None:
    nowhere = NodeClass.from_facts(simulated).model_copy(update={"driver": "999"})
    ray_launcher.launch(task_on(nowhere, "build-nowhere"))
    assert ray_launcher.statuses()["build-nowhere"].state is TaskState.WAITING
    ray_launcher.forget("build-nowhere")
    ray_launcher.forget("build-nowhere")
    assert ray_launcher.statuses() == {}


@pytest.mark.slow
def test_a_build_steps_back_behind_serving_and_ends_with_its_task(
    place: Place,
    add_version: AddVersion,
    simulated: DeviceFacts,
    ray_launcher: RayBuildLauncher,
) -> None:
    add_version((EngineKind.INDUCTOR,))
    task = task_on(NodeClass.from_facts(simulated), "build-long")
    ray_launcher.launch(task)
    ray_launcher.launch(task)
    when(ray_launcher, "build-long", TaskState.RUNNING)
    compiler = compiler_of(place)
    assert compiler.nice() == os.nice(0) + NICENESS
    assert "OMP_NUM_THREADS" not in compiler.environ()
    ray_launcher.forget("build-long")
    gone, _ = psutil.wait_procs([compiler], timeout=LIMIT_S)
    assert gone == [compiler]


def test_a_failure_is_told_in_the_compilers_last_words(
    simulated: DeviceFacts, ray_launcher: RayBuildLauncher, registry: Registry
) -> None:
    ray_launcher.launch(task_on(NodeClass.from_facts(simulated), "build-nobody"))
    status = when(ray_launcher, "build-nobody", TaskState.ENDED)
    assert status.is_failed
    assert "NotFoundError: model 'tiny' not found" in status.detail


@pytest.mark.slow
def test_a_task_whose_process_dies_failed_once_its_node_is_known_to_live(
    place: Place, add_version: AddVersion, simulated: DeviceFacts, cluster: Cluster
) -> None:
    add_version((EngineKind.INDUCTOR,))
    now_s = [0.0]
    launcher = RayBuildLauncher(
        store_url=str(place.store), cache_dir=str(place.cache), clock=lambda: now_s[0]
    )
    launcher.launch(task_on(NodeClass.from_facts(simulated), "build-dies"))
    when(launcher, "build-dies", TaskState.RUNNING)
    compiler_of(place).parent().kill()  # type: ignore[union-attr]
    until_said(launcher, "build-dies", "dead")
    assert launcher.statuses()["build-dies"].state is TaskState.RUNNING
    now_s[0] += 60
    status = launcher.statuses()["build-dies"]
    assert (status.state, status.is_failed, status.is_lost) == (TaskState.ENDED, True, False)
    assert status.run
    launcher.forget("build-dies")
    assert launcher.statuses() == {}


@pytest.mark.slow
def test_a_lost_connection_is_no_end_and_a_lost_node_no_failure(
    place: Place, add_version: AddVersion, cluster: Cluster, ray_launcher: RayBuildLauncher
) -> None:
    add_version((EngineKind.INDUCTOR,))
    lowest = main_device(local_devices("cpu-x86_64-v2"))
    node_class = NodeClass.from_facts(lowest)
    labels = node_class.labels() | {SIMULATED_LABEL: lowest.generation}
    node = cluster.add_node(num_cpus=1, labels=labels)
    ray_launcher.launch(task_on(node_class, "build-lost"))
    when(ray_launcher, "build-lost", TaskState.RUNNING)
    actor = compiler_of(place).parent()
    assert actor is not None
    # Frozen, it cannot tell Ray of the actor's death: nothing is known but a broken connection.
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGSTOP)
    actor.kill()
    until_said(ray_launcher, "build-lost", "unavailable")
    assert ray_launcher.statuses()["build-lost"].state is TaskState.RUNNING
    cluster.remove_node(node, allow_graceful=False)
    status = when(ray_launcher, "build-lost", TaskState.ENDED)
    assert status.is_lost, status


class RayNodes:
    """A NodeSource: the labels of the cluster's living nodes."""

    def pools(self) -> list[NodePool]:
        classes = [NodeClass.from_labels(node["Labels"]) for node in ray.nodes() if node["Alive"]]
        return [
            NodePool(node_class=node_class, source="ray", num_nodes=classes.count(node_class))
            for node_class in dict.fromkeys(classes)
            if node_class is not None
        ]


@pytest.mark.slow
async def test_a_node_that_joins_gets_its_engines_although_the_controller_dies(
    cluster: Cluster,
    registry: Registry,
    add_version: AddVersion,
    ray_launcher: RayBuildLauncher,
    place: Place,
) -> None:
    add_version()
    lowest = main_device(local_devices("cpu-x86_64-v2"))
    labels = NodeClass.from_facts(lowest).labels() | {SIMULATED_LABEL: lowest.generation}

    def started() -> BuildLoop:
        launcher = RayBuildLauncher(
            store_url=str(place.store), cache_dir=str(place.cache), extra_arguments=QUICK
        )
        return BuildLoop(registry, RayNodes(), launcher, FleetState("", 0))

    async def pass_until(loop: BuildLoop, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not wanted():
                await loop.sync()
                # Compilers write, and a store tells nobody.
                await asyncio.sleep(POLL_S)

    def proven() -> set[str]:
        devices = [engine.proof.device for engine in registry.engines()]
        return {device.generation for device in devices if device is not None}

    def told() -> Counter[tuple[EventKind, str]]:
        events = (event for _, event in registry.last_events(100))
        return Counter((event.kind, event.generation) for event in events)

    first = started()
    await pass_until(first, lambda: len(proven()) == 1)
    node = cluster.add_node(num_cpus=1, labels=labels)
    began = (EventKind.BUILD_STARTED, lowest.generation)
    await pass_until(first, lambda: began in told())
    # Nothing of the first controller is left but what store and Ray remember.
    second = started()
    ended = (EventKind.PROOF_PASSED, lowest.generation)
    await pass_until(second, lambda: ended in told() and not ray_launcher.statuses())
    cluster.remove_node(node)
    gone = (EventKind.GENERATION_GONE, lowest.generation)
    await pass_until(second, lambda: gone in told())
    assert told()[began] == told()[ended] == told()[gone] == 1
    assert lowest.generation in proven()
