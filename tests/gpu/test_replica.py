"""From an ONNX file to answers on a GPU: pipeline, check in a child, replica, live swap."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.contracts.builds.build_record import BuildOutcome
from services.contracts.errors import EngineError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ProofOutcome, PublishedEngine
from services.contracts.selection.selection import select
from services.engines.loader import engine_class
from services.pb import fleet_v1_pb2 as fleet
from services.replica.engine.check_child import check_in_child
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.ready import wait_ready
from services.telemetry.recorder import NullRecorder
from tests.conformance.tiny_model import draw_inputs, reference, tiny_model
from tests.gpu.cases import MAX_ABS
from tests.gpu.forge import RECIPE, Forge, open_forge
from tests.gpu.requests import MODEL, assert_answers, request_of
from tests.integration.replica.conftest import connected
from tests.integration.replica.controller import TestController
from tests.integration.replica.on_ray.test_processes import start_process

PRECISIONS = RECIPE.precisions
SHAPES = [(1, 1), (3, 7), (4, 16), (5, 17), (8, 32)]
START_S = 120.0
Question = tuple[dict[str, Array], dict[str, Array]]


@pytest.fixture(scope="module")
def forge(device: DeviceFacts, tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """A store with engines that the pipeline built and proved on this device."""
    forge = open_forge(tmp_path_factory.mktemp("forge"))
    records = forge.build(*PRECISIONS).records
    assert [(r.outcome, r.reason) for r in records] == [(BuildOutcome.PROVEN, "")] * len(PRECISIONS)
    return forge


@pytest.fixture(scope="module")
def best(forge: Forge, device: DeviceFacts) -> PublishedEngine:
    """The engine that a replica must choose."""
    chosen = select(forge.registry.engines(), device, version=forge.version).engine
    assert chosen is not None
    return chosen


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """Inputs with the reference's outputs."""
    model, drawn = tiny_model(), [draw_inputs(*shape, seed=sum(shape)) for shape in SHAPES]
    return [(inputs, reference(model, inputs)) for inputs in drawn]


@pytest.fixture
async def controller() -> AsyncIterator[TestController]:
    async with TestController() as controller:
        yield controller


def settings_for(forge: Forge, folder: Path, controller: TestController) -> ReplicaSettings:
    return ReplicaSettings(
        store_url=forge.store_url,
        cache_dir=folder / "cache",
        model=MODEL,
        controller_address=controller.address,
        socket_dir=folder / "s",
    )


def checks_passed(settings: ReplicaSettings) -> int:
    """How many engines passed the check in a child for this cache."""
    return len(list((settings.cache_dir / "checked").glob("*")))


# ---------------------------------------------------------------- the pipeline


def test_the_engines_are_proven_on_this_device(forge: Forge, device: DeviceFacts) -> None:
    engines = forge.registry.engines(forge.version.master.digest)
    assert {e.manifest.key.precision for e in engines} == set(PRECISIONS)
    for engine in engines:
        key, proof = engine.manifest.key, engine.proof
        bound_to = (key.generation, key.device_name, key.device_memory_gib, key.driver)
        assert bound_to == (device.generation, device.name, device.memory_gib, device.driver)
        assert key.toolchain == {n: device.toolchain[n] for n in ("torch", "triton", "cuda")}
        assert key.pads == {"ids": 1.0}
        assert (proof.outcome, proof.device) == (ProofOutcome.PASSED, device)
        assert {check.bucket for check in proof.checks} == {b.label for b in key.buckets}
        assert [task.is_passed for task in proof.tasks] == [True]
        assert proof.timings
        assert proof.peak_memory_bytes > 0


def test_a_second_build_finds_everything_up_to_date(forge: Forge) -> None:
    report = forge.build(*PRECISIONS)
    assert report.records == ()
    assert len(report.up_to_date) == len(PRECISIONS)


# ---------------------------------------------------------------- the check in a child


def test_a_child_runs_a_good_engine(forge: Forge, best: PublishedEngine) -> None:
    check_in_child(forge.load_spec(best), forge.version.recipe.inputs)


def test_a_child_takes_the_blow_of_a_broken_engine(
    forge: Forge, best: PublishedEngine, tmp_path: Path
) -> None:
    spec = forge.load_spec(best)
    broken = shutil.copytree(spec.directory, tmp_path / "broken")
    largest = max(broken.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises(EngineError, match="in a child process ended with"):
        check_in_child(replace(spec, directory=broken), forge.version.recipe.inputs)
    # This process has the device as before.
    engine = engine_class(best.manifest.key.kind).load(spec)
    assert engine.run(draw_inputs(2, 3))["pooled"].shape[0] == 2
    engine.close()


# ---------------------------------------------------------------- replicas


async def test_a_replica_process_serves_the_engine(
    forge: Forge,
    best: PublishedEngine,
    questions: list[Question],
    controller: TestController,
    tmp_path: Path,
) -> None:
    settings = settings_for(forge, tmp_path, controller)
    process, ready = start_process(settings)
    try:
        announced = await asyncio.to_thread(wait_ready, ready, START_S, "replica")
        token = bytes.fromhex(announced["token"])
        for address in announced["addresses"]:
            async with connected(address, token) as connection:
                for inputs, wanted in questions:
                    answer = await connection.infer(request_of(inputs))
                    assert_answers(answer, inputs, wanted, MAX_ABS[best.manifest.key.precision])
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()  # does nothing to one that ended
        print(process.communicate()[1].decode())
    report = await controller.report_where(lambda r: r.state == fleet.REPLICA_STATE_READY)
    assert (report.engine_digest, report.engine_kind) == (best.digest, "inductor")
    assert (report.fallback_reason, report.detail) == ("", "")
    assert checks_passed(settings) == 1


async def test_the_fallback_serves_until_an_engine_is_announced(
    forge: Forge,
    best: PublishedEngine,
    questions: list[Question],
    controller: TestController,
    device: DeviceFacts,
    tmp_path: Path,
) -> None:
    empty = open_forge(tmp_path)
    settings = settings_for(empty, tmp_path / "replica", controller)
    server = ReplicaServer(settings, NullRecorder())
    await server.start()
    try:
        report = await controller.report_where(lambda r: r.state == fleet.REPLICA_STATE_READY)
        assert (report.engine_kind, report.engine_digest) == ("fallback", "")
        assert (report.fallback_reason, report.detail) == (
            "no_engine",
            "no_engine",
        )
        assert (report.fallback_name, report.is_fallback_interim) == ("ONNX Runtime", True)
        async with asyncio.timeout(START_S):
            report = await controller.report_where(lambda r: r.fallback_name == "torch.compile")
        assert not report.is_fallback_interim
        # ONNX Runtime's answers are kept, and torch gives the same on this device.
        assert empty.version.fallback_answers is not None
        assert report.fallback_refuted == ""
        assert report.engine_generation == device.generation
        # A wrong answer ends the test at once, whatever it waits for.
        async with asyncio.TaskGroup() as clients:
            asking = [clients.create_task(ask(server, questions, n)) for n in range(4)]
            await asyncio.to_thread(forge.copy, best, empty.registry)
            changed = fleet.EnginesChanged(master_digest=best.manifest.key.master_digest)
            await controller.send(fleet.ReplicaCommand(engines_changed=changed))
            async with asyncio.timeout(START_S):
                report = await controller.report_where(lambda r: r.engine_digest == best.digest)
        assert (report.engine_kind, report.fallback_reason) == ("inductor", "")
        num_answers = sum(task.result() for task in asking)
        stats = server.replica.statistics.message().inference_stats
        assert (stats.success.count, stats.fail.count) == (num_answers, 0)
        assert checks_passed(settings) == 1
        await server.check_health()
    finally:
        await server.stop()


async def ask(server: ReplicaServer, questions: list[Question], first: int) -> int:
    """Ask in turn until the engine has served some too; every answer is compared."""
    num_answers = num_by_engine = 0
    async with connected(server.addresses[first % 2], server.token) as connection:
        while num_by_engine < 2 * len(questions):
            inputs, wanted = questions[(first + num_answers) % len(questions)]
            loaded = server.replica.loaded
            assert loaded is not None
            answer = await connection.infer(request_of(inputs))
            # An answer may come from either side of the swap: the wider bound counts.
            assert_answers(answer, inputs, wanted, MAX_ABS[Precision.FP16])
            num_answers += 1
            num_by_engine += bool(loaded.digest)
    return num_answers
