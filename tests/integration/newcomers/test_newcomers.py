"""Models that people bring first: added without a recipe, proven, served, equal to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_record import BuildOutcome
from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import Array
from tests.conformance.trees import passengers, scaled
from tests.encoders import encoders
from tests.integration.newcomers.exports import NEWCOMERS, plain
from tests.integration.served import serve
from tests.process_server import forked_children
from tests.quick_worker import quick_worker

__all__ = ["forked_children"]  # a fixture

pytestmark = pytest.mark.usefixtures("forked_children")

# Trees take no torch, and little time.
IN_EACH_RUN = ("LightGBM", "scikit-learn pipeline")
CASES = [
    pytest.param(name, id=name, marks=() if name in IN_EACH_RUN else pytest.mark.slow)
    for name in NEWCOMERS
]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", CASES)
async def test_it_is_added_without_a_recipe_proven_and_served(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    requests = NEWCOMERS[name](path)
    worker = quick_worker(tmp_path)
    version = add_model(worker.registry, "m", str(path), AddOptions(), Steps(is_quiet=True))
    report = build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker)
    assert [(r.outcome, r.reason) for r in report.records] == [(BuildOutcome.PROVEN, "")]

    session = onnxruntime.InferenceSession(str(path))
    async with AsyncExitStack() as stack:
        fleet = await serve(stack, tmp_path, worker.settings.store_url, version)
        client = await fleet.client()
        for inputs in requests:
            names = [output.name for output in session.get_outputs()]
            wanted = map(plain, session.run(None, dict(inputs)))
            await assert_answers(client, inputs, dict(zip(names, wanted, strict=True)))


@pytest.mark.asyncio
async def test_categories_are_known_by_the_graph_and_others_are_refused(tmp_path: Path) -> None:
    """As of scikit-learn's OneHotEncoder, which by default fails for what it was not fitted to."""
    onnx.save(encoders(), tmp_path / "model.onnx")
    worker = quick_worker(tmp_path)
    source = str(tmp_path / "model.onnx")
    version = add_model(worker.registry, "m", source, AddOptions(), Steps(is_quiet=True))
    assert version.recipe.batching.batch_dim == "batch"
    report = build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker)
    assert [(r.outcome, r.reason) for r in report.records] == [(BuildOutcome.PROVEN, "")]
    inputs = {
        "port": np.array([["", "S"], ["", "C"]], dtype=object),
        "code": np.array([[0, 13], [1, 19]], np.float32),
        "age": np.array([[20], [30]], np.float32),
    }
    async with AsyncExitStack() as stack:
        fleet = await serve(stack, tmp_path, worker.settings.store_url, version)
        client = await fleet.client()
        wanted = np.array([[0, 0, 1, 0, 1, 0, 2], [1, 0, 0, 0, 0, 1, 3]], np.float32)
        await assert_answers(client, inputs, {"scores": wanted})
        inputs["port"] = np.array([["", "S"], ["", "X"]], dtype=object)
        with pytest.raises(InferenceServerException, match="Unknown Category") as refused:
            await assert_answers(client, inputs, {})
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("model", [passengers(), scaled()], ids=["trees", "scaler"])
def test_features_of_any_size_are_known_by_the_graph(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Ages and fares, none of which lies around zero: drawn there, all labels would be one."""
    onnx.save(model, tmp_path / "model.onnx")
    worker = quick_worker(tmp_path)
    source = str(tmp_path / "model.onnx")
    version = add_model(worker.registry, "m", source, AddOptions(), Steps(is_quiet=True))
    report = build_model(version, Wanted(kinds=(EngineKind.ONNXRUNTIME,)), worker)
    assert [(r.outcome, r.reason) for r in report.records] == [(BuildOutcome.PROVEN, "")]
    proof = report.records[0].proof
    assert proof
    label, scores = proof.power
    assert (label.blind, label.unchanged, scores.blind) == ((), (), ())
    assert {"rows shuffled", "one value everywhere"} <= {*label.refused}


async def assert_answers(
    client: InferenceServerClient, inputs: Mapping[str, Array], wanted: Mapping[str, Array]
) -> None:
    sent = []
    for name, array in inputs.items():
        sent.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        sent[-1].set_data_from_numpy(array)
    result = await client.infer("m", sent)
    for name, array in wanted.items():
        found = result.as_numpy(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        scale = float(np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(found, array, rtol=0, atol=1e-5 * scale)
