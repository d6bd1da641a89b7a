"""The build loop over a real store and real compilers; nodes are what the test says."""

from collections.abc import Callable

import pytest

from compiler_worker.plans.build_keys import Wanted
from compiler_worker.plans.plan_document import keep_plans
from compiler_worker.settings import CompilerSettings
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.events import EventKind
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind
from services.contracts.hardware.node_class import NodeClass
from services.contracts.model.manifest import ModelVersion, ProofOutcome
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_loop import BuildLoop, BuildPace
from services.controller.build.key_status import RetryPolicy
from services.controller.interfaces import NodePool
from tests.integration.builds.conftest import FakeNodes, Place, ProcessLauncher

pytestmark = pytest.mark.usefixtures("forked_children")

AddVersion = Callable[..., ModelVersion]
# Nothing is waited for but real ends of real processes.
AT_ONCE = BuildPace(retry=RetryPolicy(first_delay_s=0.0))
LOWER = "cpu-x86_64-v3"


def loop_on(registry: Registry, nodes: FakeNodes, launcher: ProcessLauncher) -> BuildLoop:
    """A loop of a controller that has just been started."""
    return BuildLoop(registry, nodes, launcher, FleetState("", 0), pace=AT_ONCE)


async def settled(loop: BuildLoop, launcher: ProcessLauncher) -> None:
    """Pass until nothing runs any more."""
    await loop.sync()
    while launcher.processes:
        launcher.wait()
        await loop.sync()


def told(registry: Registry) -> list[EventKind]:
    return [event.kind for _, event in registry.last_events(100)]


def proven_on(registry: Registry) -> str:
    """Where the one engine that is there was proven last."""
    (engine,) = registry.engines()
    assert engine.proof.device is not None
    return engine.proof.device.generation


async def test_a_new_node_gets_its_engines_and_the_trail_says_so(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    here: DeviceFacts,
) -> None:
    add_version((EngineKind.ONNXRUNTIME, EngineKind.OPENVINO))
    loop = loop_on(registry, nodes, launcher)
    await settled(loop, launcher)
    assert launcher.launched == []

    nodes.add(here)
    await settled(loop, launcher)
    assert [task.key_digests for task in launcher.launched] == [()], "one task does it all"
    outcomes = [engine.proof.outcome for engine in registry.engines()]
    assert outcomes == [ProofOutcome.PASSED] * 2
    kinds = told(registry)
    assert kinds[:2] == [EventKind.MODEL_PUBLISHED, EventKind.GENERATION_APPEARED]
    assert sorted(kinds[2:]) == sorted(
        [EventKind.BUILD_STARTED, *[EventKind.BUILD_FINISHED, EventKind.PROOF_PASSED] * 2]
    )
    nodes.known.clear()
    await settled(loop_on(registry, nodes, launcher), launcher)
    assert told(registry) == [*kinds, EventKind.GENERATION_GONE]
    assert len(launcher.launched) == 1


async def test_engines_built_elsewhere_are_proven_where_their_generation_appears(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    here: DeviceFacts,
) -> None:
    add_version()
    lower = here.model_copy(update={"generation": LOWER})
    # As a description file names it: no more than the generation, and no node yet.
    ahead = NodeClass(generation=LOWER)
    nodes.known[LOWER] = NodePool(node_class=ahead, source="file", num_nodes=0)
    loop = loop_on(registry, nodes, launcher)
    await settled(loop, launcher)
    (task,) = launcher.launched
    assert task.is_anywhere
    assert proven_on(registry) == here.generation

    nodes.add(lower)
    await settled(loop, launcher)
    assert proven_on(registry) == LOWER


async def test_a_build_that_is_killed_leaves_a_record_and_is_tried_again(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    here: DeviceFacts,
    place: Place,
) -> None:
    settings = CompilerSettings(store_url=str(place.store), cache_dir=place.cache)
    keep_plans(add_version(), Wanted(), WorkerContext(registry=registry, settings=settings))
    nodes.add(here)
    await loop_on(registry, nodes, launcher).sync()
    (process,) = launcher.processes.values()
    process.kill()
    process.wait()
    # Another controller than the one that launched it.
    await settled(loop_on(registry, nodes, launcher), launcher)
    (engine,) = registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED
    failed, proven = registry.build_records(engine.digest)
    assert failed.reason.endswith("ended in the middle: exit code -9")
    assert proven.outcome is BuildOutcome.PROVEN
    assert [task.attempt for task in launcher.launched] == [1, 2]
    kinds = told(registry)
    wanted = [EventKind.BUILD_STARTED, EventKind.BUILD_FAILED, EventKind.BUILD_STARTED]
    assert [kind for kind in kinds if kind in wanted] == wanted
    assert kinds[-2:] == [EventKind.BUILD_FINISHED, EventKind.PROOF_PASSED]
