"""What makes the build loop launch real compilers: a pool at zero, another toolchain, a rebuild."""

from collections.abc import Callable

import pytest

from services.contracts.builds.build_plan import BuildPlan, RebuildRequest
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
from tests.integration.builds.conftest import FakeNodes, ProcessLauncher

pytestmark = pytest.mark.usefixtures("forked_children")

AddVersion = Callable[..., ModelVersion]
TWICE = BuildPace(retry=RetryPolicy(max_attempts=2, first_delay_s=0.0))
ADA = "cuda-sm89"


@pytest.fixture
def loop(registry: Registry, nodes: FakeNodes, launcher: ProcessLauncher) -> BuildLoop:
    return BuildLoop(registry, nodes, launcher, FleetState("", 0), pace=TWICE)


async def settled(loop: BuildLoop, launcher: ProcessLauncher) -> None:
    """Pass until nothing runs any more."""
    await loop.sync()
    while launcher.processes:
        launcher.wait()
        await loop.sync()


def words_of(registry: Registry, kind: EventKind) -> list[str]:
    return [event.why for _, event in registry.last_events(100) if event.kind is kind]


async def test_tensorrt_is_built_for_a_pool_that_has_no_node_yet(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    loop: BuildLoop,
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
    add_version((EngineKind.TENSORRT, EngineKind.INDUCTOR))
    ahead = NodeClass(generation=ADA)
    nodes.known[ADA] = NodePool(node_class=ahead, source="kubernetes", num_nodes=0)
    await settled(loop, launcher)
    (task,) = launcher.launched
    assert task.is_anywhere
    (engine,) = registry.engines()
    key = engine.manifest.key
    assert (key.kind, key.generation) == (EngineKind.TENSORRT, ADA)
    assert engine.proof.outcome is ProofOutcome.NOT_RUN
    (why,) = words_of(registry, EventKind.BUILD_STARTED)
    assert "no node yet: only what can be built ahead of time" in why
    await settled(loop, launcher)
    assert len(launcher.launched) == 1, "the rest waits for a node"


async def test_another_toolchain_on_the_same_generation_makes_a_plan_and_engines_of_its_own(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    here: DeviceFacts,
    loop: BuildLoop,
) -> None:
    version = add_version()
    older = here.model_copy(update={"toolchain": here.toolchain | {"onnxruntime": "1.0"}})
    old_class = nodes.add(older)
    registry.write_plan(
        BuildPlan(
            model=version.name,
            version=version.version,
            node_class=old_class,
            facts=older,
            created_at=version.created_at,
        )
    )
    await settled(loop, launcher)
    assert launcher.launched == [], "all that these nodes can have is there"
    new_class = nodes.add(here)
    await settled(loop, launcher)
    (task,) = launcher.launched
    assert (task.node_class, task.key_digests) == (new_class, ())
    assert registry.build_plan(version.name, version.version, new_class) is not None
    (engine,) = registry.engines()
    assert engine.proof.outcome is ProofOutcome.PASSED
    (why,) = words_of(registry, EventKind.TOOLCHAIN_CHANGED)
    assert new_class.toolchain in why


async def test_a_proof_that_is_killed_is_tried_again_and_the_old_one_stays(
    registry: Registry,
    add_version: AddVersion,
    nodes: FakeNodes,
    launcher: ProcessLauncher,
    here: DeviceFacts,
    loop: BuildLoop,
) -> None:
    version = add_version()
    nodes.add(here)
    await settled(loop, launcher)
    (proven,) = registry.engines()
    # A child that imports torch itself is not done by then.
    launcher.environment |= {"SMELT_PROOF_TIME_LIMIT_S": "0.01", "SMELT_TESTS_PROCESS_SERVER": ""}
    registry.request_rebuild(
        RebuildRequest(
            model=version.name,
            version=version.version,
            who="ann",
            why="a look",
            reprove={proven.digest: proven.proof.created_at},
            created_at=version.created_at,
        )
    )
    await settled(loop, launcher)
    assert [task.attempt for task in launcher.launched] == [1, 1, 2]
    assert registry.engines() == [proven]
    (why,) = words_of(registry, EventKind.QUARANTINED)
    assert "failed 2 times" in why
    assert "no result within 0.01 s" in why
