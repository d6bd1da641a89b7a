"""A model of strings, once through a real build, a real replica and a real gateway."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import pytest_asyncio

from compiler_worker.pipeline import BuildReport, build_model
from compiler_worker.plan import Wanted
from services.cli.models import Wishes, add_model
from services.cli.progress import Steps
from services.contracts.kinds import EngineKind
from services.contracts.manifest import ModelVersion
from services.contracts.recipe import Bucket, DimRange, Recipe
from services.contracts.registry import Registry
from services.pb import fleet_v1_pb2 as fleet_pb
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.conformance.strings import WORDS, colours
from tests.integration.gateway.conftest import Fleet
from tests.quick_workshop import quick_workshop

RECIPE = Recipe(
    kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO, EngineKind.INDUCTOR),
    buckets=(Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)}),),
)


@dataclass(frozen=True, kw_only=True)
class Built:
    """A store with the model and its engine."""

    folder: Path
    store_url: str
    version: ModelVersion
    report: BuildReport
    registry: Registry


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The model, planned, built, proven, timed and published."""
    folder = tmp_path_factory.mktemp("strings")
    workshop = quick_workshop(folder)
    onnx.save(colours(), folder / "colours.onnx")
    np.savez(
        folder / "samples.npz", words=np.array([WORDS, ("other", "red", "", "x")]).reshape(4, 2)
    )
    wishes = Wishes(recipe=RECIPE, samples=folder / "samples.npz")
    source = str(folder / "colours.onnx")
    version = add_model(workshop.registry, "colours", source, wishes, Steps(is_quiet=True))
    report = build_model(version, Wanted(), workshop)
    return Built(
        folder=folder,
        store_url=workshop.settings.store_url,
        version=version,
        report=report,
        registry=workshop.registry,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(built: Built) -> AsyncIterator[Fleet]:
    """A gateway that takes shared memory, before one replica of the model."""
    settings = ReplicaSettings(
        store_url=built.store_url,
        cache_dir=built.folder / "cache",
        model="colours",
        socket_dir=built.folder,
        num_threads=1,
    )
    async with AsyncExitStack() as stack:
        replica = ReplicaServer(settings, NullRecorder())
        await replica.start()
        stack.push_async_callback(replica.stop, 0)
        parts = Fleet(stack, built.folder)
        await parts.controller.start()
        stack.push_async_callback(parts.controller.stop)
        await parts.start_gateway(shared_memory=True)
        parts.add_model(built.version)
        parts.controller.snapshot.replicas.add(
            replica_id="r1",
            model_name="colours",
            model_version=1,
            state=fleet_pb.REPLICA_STATE_READY,
            addresses=replica.addresses,
            data_token=replica.token,
            host_id="here",
            engine_kind="onnxruntime",
        )
        await parts.until_ready("r1")
        yield parts
