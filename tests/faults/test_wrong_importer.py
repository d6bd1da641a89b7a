"""A model that the importer translates wrong: found when it is added, served right all the same."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.errors import UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import bytes_from_array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.pb import open_inference_v2_pb2 as pb
from services.replica.engine.loaded_engine import FoundBy
from services.replica.server import ReplicaServer
from services.replica.settings import ReplicaSettings
from services.telemetry.recorder import NullRecorder
from tests.faults.judged import normal, written
from tests.integration.replica.controller import TestController

WRONG = Path(__file__).with_name("wrong_importer")
RECIPE = Recipe(
    precisions=(Precision.FP32,),
    buckets=(Bucket(dims={"batch": DimRange(min=1, opt=4, max=9)}),),
)
WEIGHTS = {"w": normal(8, 16), "v": normal(16, 4)}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")


Add = Callable[[int], ModelVersion]


@pytest.fixture
def add(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Adds the model, of an opset, as a wrong importer has it added."""
    paths = [str(WRONG), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SMELT_VERDICT_TIME_LIMIT_S", "600")  # other tests run meanwhile
    monkeypatch.setenv("PATH", "")  # what torch compiles is eager then, which takes less time
    graph = """g (float[batch, 8] x) => (float[batch, 4] y)
        { h = MatMul (x, w) r = Relu (h) y = MatMul (r, v) }"""

    def added(opset: int) -> ModelVersion:
        path = written(tmp_path, graph, **WEIGHTS)
        model = onnx.load(path)
        model.opset_import[0].version = opset
        onnx.save(model, path)
        return add_model(
            registry, "mlp", str(path), AddOptions(recipe=RECIPE), Steps(is_quiet=True)
        )

    return added


@pytest.fixture
def version(add: Add) -> ModelVersion:
    """The model as a wrong importer would have it served."""
    return add(20)


def test_where_nothing_else_could_serve_it_is_not_added(add: Add, registry: Registry) -> None:
    wanted = r"importer is wrong beside onnx\.reference .* opset 28: .*; convert the model to"
    with pytest.raises(UnsupportedGraphError, match=wanted):
        add(28)
    assert registry.model_names() == []


Serve = Callable[[], AbstractAsyncContextManager[ReplicaServer]]


@pytest.fixture
async def controller() -> AsyncIterator[TestController]:
    """A controller that writes down what replicas report."""
    async with TestController() as controller:
        yield controller


@pytest.fixture
def serve(tmp_path: Path, controller: TestController) -> Serve:
    @asynccontextmanager
    async def serving() -> AsyncIterator[ReplicaServer]:
        settings = ReplicaSettings(
            store_url=str(tmp_path / "store"),
            cache_dir=tmp_path / "cache",
            model="mlp",
            controller_address=controller.address,
            socket_dir=tmp_path / "s",
            num_threads=1,
        )
        server = ReplicaServer(settings, NullRecorder())
        try:
            await server.start()
            yield server
        finally:
            await server.stop(grace_s=0)

    return serving


async def assert_right(server: ReplicaServer, found_by: FoundBy) -> None:
    """It is not torch's fallback that answers, and the answers are right."""
    loaded = server.replica.loaded
    assert loaded is not None
    assert loaded.refutation is not None
    assert (loaded.kind, loaded.refutation.found_by) == ("fallback", found_by)
    x = normal(3, 8, seed=5)
    request = pb.ModelInferRequest(model_name="mlp")
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(bytes_from_array(x))
    answer = await server.replica.infer(request.SerializeToString())
    (raw,) = pb.ModelInferResponse.FromString(answer).raw_output_contents
    wanted = np.maximum(x @ WEIGHTS["w"], 0) @ WEIGHTS["v"]
    found = np.frombuffer(raw, np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


async def test_it_is_refuted_when_it_is_added_and_right_when_it_serves(
    version: ModelVersion,
    registry: Registry,
    serve: Serve,
    controller: TestController,
    tmp_path: Path,
) -> None:
    assert version.fallback_verdict is not None
    assert "output 'y', bucket batch9 at batch=" in version.fallback_verdict.refuted
    assert "rel_l2" in version.fallback_verdict.refuted
    async with serve() as server:
        await assert_right(server, FoundBy.IMPORTER)
    programs = tmp_path / "cache" / "programs"
    assert not programs.exists()
    # As if another release's importer had been right: the wrong program of this one is exported,
    # loaded, and found out on the device.
    assert version.fallback_answers is not None
    registry.add_model_version(
        name="mlp",
        master=version.master,
        recipe=RECIPE,
        source="another",
        source_fingerprint="another",
        fallback_verdict=version.fallback_verdict.model_copy(update={"code": "another"}),
        fallback_answers=registry.materialise_samples(version.fallback_answers),
    )
    async with serve() as server:
        # ONNX Runtime answers at once; what torch compiled is found wrong before it serves.
        async with asyncio.timeout(120):
            await controller.report_where(
                lambda report: "on this device" in report.fallback_refuted
            )
        await assert_right(server, FoundBy.DEVICE)
    assert list(programs.glob("*.pt2"))
