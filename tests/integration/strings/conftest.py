"""A model of strings, once through a real build, a real replica and a real gateway."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import onnx
import pytest
import pytest_asyncio

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from tests.conformance.strings import WORDS, colours
from tests.integration.gateway.conftest import Fleet
from tests.integration.served import Built, serve
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

__all__ = ["forked_children"]  # a fixture

RECIPE = Recipe(
    kinds=(EngineKind.ONNXRUNTIME, EngineKind.OPENVINO, EngineKind.INDUCTOR),
    precisions=(Precision.FP32,),
    buckets=(Bucket(dims={"batch": DimRange(min=1, opt=4, max=8)}),),
)


@pytest.fixture(scope="module")
def built(forked_children: None, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The model, planned, built, proven, timed and published."""
    folder = tmp_path_factory.mktemp("strings")
    worker = quick_worker(folder)
    onnx.save(colours(), folder / "colours.onnx")
    np.savez(
        folder / "samples.npz", words=np.array([WORDS, ("other", "red", "", "x")]).reshape(4, 2)
    )
    options = AddOptions(recipe=RECIPE, samples=folder / "samples.npz")
    source = str(folder / "colours.onnx")
    version = add_model(worker.registry, "colours", source, options, Steps(is_quiet=True))
    report = build_model(version, Wanted(), worker)
    return Built(
        folder=folder,
        store_url=worker.settings.store_url,
        version=version,
        report=report,
        registry=worker.registry,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(built: Built) -> AsyncIterator[Fleet]:
    """A gateway that takes shared memory, before one replica of the model."""
    async with AsyncExitStack() as stack:
        yield await serve(stack, built.folder, built.store_url, built.version)
