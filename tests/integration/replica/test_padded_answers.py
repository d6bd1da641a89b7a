"""Nobody gets another's rows: thousands of requests of mixed lengths through batcher and engine.

The model's answer at a position depends on every position before it, and its pooled answer on
all of them, each with its own weight: a row, a position or a pad that strays changes it. All
its numbers are whole, so the answer in a batch must be that of the request alone, to the bit.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from services.contracts.builds.build_key import BuildKey
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.batching import Batching
from services.contracts.model.manifest import EngineManifest, MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.engines.base import LoadSpec
from services.engines.device.device_probe import probe_device
from services.engines.onnxruntime_engine import OnnxruntimeEngine
from services.replica.batching.batch_report import BatchReport
from services.replica.batching.batcher import Batcher
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import elements_of
from services.replica.engine.worker import EngineWorker
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature
from tests.unit.services.replica.toy_batcher import executor_of

from .published import CREATED_AT

NUM_REQUESTS = 1000
MAX_LENGTH = 60
INPUTS = tuple(
    TensorSpec(name=name, datatype="INT64", shape=("batch", "sequence")) for name in ("ids", "mask")
)
OUTPUTS = (
    TensorSpec(name="running", datatype="INT64", shape=("batch", "sequence")),
    TensorSpec(name="pooled", datatype="INT64", shape=("batch", 1)),
)


def _range(low: int, high: int) -> DimRange:
    return DimRange(min=low, opt=high, max=high)


def _bucket(batch: DimRange, sequence: DimRange) -> Bucket:
    return Bucket(dims={"batch": batch, "sequence": sequence})


BUCKETS = {
    "none": (),
    "ranges": (
        _bucket(_range(1, 16), _range(1, 20)),
        _bucket(_range(1, 4), _range(1, MAX_LENGTH)),
    ),
    "static": tuple(
        _bucket(_range(rows, rows), _range(length, length))
        for rows in (1, 4, 8)
        for length in (8, 24, MAX_LENGTH)
    ),
}


def _model() -> onnx.ModelProto:
    """Outputs: running = cumulated ids * mask * (place among the valid); pooled = their sum."""
    nodes = [
        helper.make_node("CumSum", ["mask", "axis"], ["place"]),
        helper.make_node("Mul", ["ids", "mask"], ["valid"]),
        helper.make_node("Mul", ["valid", "place"], ["weighed"]),
        helper.make_node("CumSum", ["weighed", "axis"], ["running"]),
        helper.make_node("ReduceSum", ["weighed", "axis"], ["pooled"], keepdims=1),
    ]
    infos = [
        [
            helper.make_tensor_value_info(spec.name, TensorProto.INT64, list(spec.shape))
            for spec in specs
        ]
        for specs in (INPUTS, OUTPUTS)
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    graph = helper.make_graph(nodes, "order", infos[0], infos[1], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    return model


class StrictEngine:
    """The real engine, behind one that refuses shapes it was not built for."""

    def __init__(self, engine: OnnxruntimeEngine, buckets: tuple[Bucket, ...]) -> None:
        self._engine, self._buckets = engine, buckets

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Compute within a bucket."""
        rows, length = inputs["ids"].shape
        sizes = {"batch": rows, "sequence": length}
        assert any(bucket.holds(sizes) for bucket in self._buckets), sizes
        return self._engine.run(inputs)

    def close(self) -> None:
        """The engine is closed by the fixture."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxruntimeEngine]:
    folder: Path = tmp_path_factory.mktemp("order")
    onnx.save(_model(), folder / "model.onnx")
    device = probe_device()
    key = BuildKey(
        master_digest="ab" * 32,
        kind=EngineKind.ONNXRUNTIME,
        precision=Precision.FP32,
        buckets=(),
        proof_terms="",
        builder_options={},
        generation=device.generation,
        toolchain={"onnxruntime": device.toolchain["onnxruntime"]},
    )
    manifest = EngineManifest(
        key=key,
        files={},
        inputs=INPUTS,
        outputs=OUTPUTS,
        needs_master=True,
        build_duration_s=0.0,
        created_at=CREATED_AT,
    )
    loaded = OnnxruntimeEngine.load(
        LoadSpec(
            manifest=manifest,
            master=_version(()).master,
            directory=folder,
            master_path=folder / "model.onnx",
            device=device,
            num_threads=1,
        )
    )
    yield loaded
    loaded.close()


def _version(buckets: tuple[Bucket, ...], **batching: float) -> ModelVersion:
    master = MasterRecord(
        digest="ab" * 32, files={}, inputs=INPUTS, outputs=OUTPUTS, opset=20, num_parameters=0
    )
    recipe = Recipe(
        buckets=buckets,
        inputs={"ids": InputRecipe(pad=977), "mask": InputRecipe(role=InputRole.MASK)},
        batching=Batching.model_validate({"max_queue": NUM_REQUESTS, **batching}),
    )
    return ModelVersion(
        name="order",
        version=1,
        master=master,
        recipe=recipe,
        source="test",
        source_fingerprint="",
        created_at=CREATED_AT,
    )


def _call(draw: random.Random, levels: int, max_rows: int) -> InferCall:
    rows, length = draw.randint(1, max_rows), draw.randint(1, MAX_LENGTH)
    ids = np.array([[draw.randrange(1, 10**6) for _ in range(length)] for _ in range(rows)])
    # Clients pad their own rows too.
    lengths = np.array([[draw.randint(0, length)] for _ in range(rows)])
    outputs = draw.choice([("running", "pooled"), ("pooled",), ("pooled", "running")])
    return InferCall(
        inputs={"ids": ids, "mask": (np.arange(length) < lengths).astype(np.int64)},
        sizes={"batch": rows, "sequence": length},
        outputs=outputs,
        priority=draw.randint(0, levels),
        timeout_s=draw.choice([None, None, None, 30.0]),
    )


@pytest.mark.parametrize("kind", list(BUCKETS))
@pytest.mark.parametrize("seed", range(2))
async def test_every_answer_is_that_of_the_request_alone(
    engine: OnnxruntimeEngine, kind: str, seed: int
) -> None:
    draw, reports = random.Random(seed), list[BatchReport]()
    buckets, levels = BUCKETS[kind], 3 * (seed % 2)
    version = _version(
        buckets,
        max_waste=draw.choice([0.0, 0.25, 0.9]),
        max_delay_ms=draw.choice([0.0, 0.5]),
        priority_levels=levels,
        default_priority=min(levels, 2),
    )
    rules = JoinRules.from_model(version, Signature.from_model(version))
    executor = executor_of(
        StrictEngine(engine, version.buckets),
        version.buckets,
        pads_to_largest=bool(buckets) and seed == 1,
    )
    batching = version.recipe.batching
    batcher = Batcher(EngineWorker(executor), rules, batching, on_batch=reports.append)
    batcher.start()
    calls = [_call(draw, levels, max_rows=4) for _ in range(NUM_REQUESTS)]
    try:
        await asyncio.gather(*(_checked(batcher, engine, call, draw) for call in calls))
        assert batcher.num_unanswered == 0
    finally:
        await batcher.close()
        await executor.close()
    # Nothing was shown if each request ran alone, or if none was padded.
    assert len(reports) < NUM_REQUESTS * 0.75
    assert sum(len(report.rows) for report in reports) > NUM_REQUESTS * 0.8
    real = sum(elements_of(call.sizes) for report in reports for call in report.calls)
    ran = sum(report.times.num_elements for report in reports if report.times)
    assert ran > real or batching.max_waste == 0


async def _checked(
    batcher: Batcher, engine: OnnxruntimeEngine, call: InferCall, draw: random.Random
) -> None:
    """Send a call some time, perhaps give it up, and compare its answer."""
    for _ in range(draw.randrange(40)):
        await asyncio.sleep(0)
    answer = batcher.submit(call, lambda _, outputs: outputs)
    if draw.random() < 0.1:
        await asyncio.sleep(0)
        answer.cancel()
        return
    found, alone = await answer, engine.run(dict(call.inputs))
    assert set(call.outputs) <= set(found)
    for name in call.outputs:
        np.testing.assert_array_equal(found[name], alone[name])
