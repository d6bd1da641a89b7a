"""The small parts: statistics, metrics, samples, reports."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.contracts.errors import NotReadyError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import check_array
from services.contracts.model.input_values import InputValues
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole
from services.contracts.selection.selection import FallbackReason
from services.pb import fleet_v1_pb2 as fleet
from services.replica.batching.batch_report import BatchReport
from services.replica.engine.loaded_engine import FoundBy, LoadedEngine, Refutation
from services.replica.engine.manager import EngineManager
from services.replica.engine.samples import probe_sizes, sample_inputs, warm_up_sizes
from services.replica.engine.worker import BatchTimes
from services.replica.replica import Replica
from services.replica.reporting.replica_metrics import ReplicaMetrics
from services.replica.reporting.reports import report_from_replica
from services.replica.reporting.statistics import Statistics
from services.telemetry.catalog import REPLICA_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from services.telemetry.recorder import NullRecorder
from tests.unit.services.replica.codec_requests import text_request
from tests.unit.services.replica.models import make_model, text_model
from tests.unit.services.replica.toy_batcher import ToyEngine

TIMES = BatchTimes(compute_input_s=0.001, compute_infer_s=0.01, compute_output_s=0.002)
REPORT = BatchReport(rows=(2, 1), queued_s=(0.5, 0.25), times=TIMES, forming_s=0.125, reply_s=0.5)


class _NoEngine:
    name = "nothing"

    def run(self, inputs: object) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing."""


def loaded(**changes: object) -> LoadedEngine:
    fields: dict[str, object] = {
        "engine": _NoEngine(),
        "buckets": (),
        "kind": "onnxruntime",
        "precision": "fp32",
        "generation": "cpu-x86_64-v3",
        "digest": "e1",
        "load_duration_s": 0.75,
    }
    return LoadedEngine(**{**fields, **changes})  # type: ignore[arg-type]


# ---------------------------------------------------------------- statistics


def test_statistics_add_up() -> None:
    statistics = Statistics("m", "3", wall_clock=lambda: 1234.5678)
    statistics.record_batch(REPORT)
    statistics.record_batch(REPORT)
    statistics.record_batch(BatchReport(rows=(1,), queued_s=(0.125,), times=TIMES))
    statistics.record_batch(BatchReport(rows=(9,), queued_s=(9.0,), times=None))
    for _ in range(5):
        statistics.record_success(1.0)
    statistics.record_failure(2.0)
    message = statistics.message()
    assert (message.name, message.version, message.last_inference) == ("m", "3", 1234567)
    assert (message.inference_count, message.execution_count) == (7, 3)
    total = message.inference_stats
    assert (total.success.count, total.success.ns) == (5, 5_000_000_000)
    assert (total.fail.count, total.fail.ns) == (1, 2_000_000_000)
    assert (total.queue.count, total.queue.ns) == (5, 1_625_000_000)
    assert (total.compute_infer.count, total.compute_infer.ns) == (5, 50_000_000)
    assert total.compute_input.count == total.compute_output.count == 5
    rows = {b.batch_size: (b.compute_infer.count, b.compute_infer.ns) for b in message.batch_stats}
    assert rows == {1: (1, 10_000_000), 3: (2, 20_000_000)}


def test_statistics_of_nothing_are_zero_and_named() -> None:
    message = Statistics("m", "3").message()
    assert (message.name, message.version) == ("m", "3")
    assert message.inference_count == message.last_inference == 0


def test_sizes_of_batches_are_told_apart_up_to_a_bound() -> None:
    statistics = Statistics("m", "3")
    for num_rows in (*range(1, 1001), 0, 3, 300):
        statistics.record_batch(BatchReport(rows=(num_rows,), queued_s=(0.0,), times=TIMES))
    message = statistics.message()
    counts = {each.batch_size: each.compute_infer.count for each in message.batch_stats}
    assert list(counts) == [*range(1, 257), 512, 1024]
    assert (counts[1], counts[2], counts[3]) == (2, 1, 2)
    assert (counts[512], counts[1024]) == (256 + 1, 488)
    assert message.execution_count == sum(counts.values()) == 1003


async def test_what_another_replica_will_answer_is_no_failure() -> None:
    model = text_model()
    device = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
    host = EngineManager(None, model, device, lambda model: _NoEngine(), None)  # type: ignore[arg-type]
    replica = Replica(model, device, host, NullRecorder())
    with pytest.raises(NotReadyError):
        replica.infer(b"")
    assert replica.statistics.message().inference_stats.fail.count == 0


async def test_nor_is_what_waits_in_one_that_stops() -> None:
    model, engine = text_model(), ToyEngine()
    device = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
    ready = loaded(engine=engine, buckets=model.recipe.buckets)
    host = SimpleNamespace(load=lambda: ready)
    replica = Replica(model, device, host, NullRecorder())  # type: ignore[arg-type]
    await replica.load()
    engine.may_run.clear()
    held = replica.infer(text_request().SerializeToString())
    assert await asyncio.to_thread(engine.is_running.wait, 30)
    waiting = replica.infer(text_request().SerializeToString())
    gone = replica.infer(text_request().SerializeToString())
    gone.cancel()
    await asyncio.sleep(0)
    closing = asyncio.create_task(replica.close())
    for stopped in (held, waiting):
        with pytest.raises(NotReadyError):
            await stopped
    engine.may_run.set()
    await closing
    assert replica.statistics.message().inference_stats.fail.count == 1


# ---------------------------------------------------------------- metrics


def test_metrics_follow_the_engine_in_use() -> None:
    registry = CollectorRegistry()
    node = "cpu-x86_64-avx512"
    metrics = ReplicaMetrics(PrometheusRecorder(REPLICA_METRICS, registry), "m", "3", node)
    model = {"model": "m", "version": "3"}
    fallback = loaded(
        kind="fallback",
        digest="",
        generation=node,
        fallback_reason=FallbackReason.NOT_PROVEN,
        refutation=Refutation(found_by=FoundBy.DEVICE, words="wrong"),
    )
    metrics.engine_changed(fallback)
    metrics.record_batch(REPORT)
    metrics.engine_changed(loaded())
    metrics.record_batch(REPORT)
    metrics.record_batch(BatchReport(rows=(1,), queued_s=(0.0,), times=None))
    metrics.add_sums()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**model, **labels})

    of_fallback = {"generation": node, "kind": "fallback"}
    of_engine = {"generation": "cpu-x86_64-v3", "kind": "onnxruntime"}
    in_use = "smelt_engine_in_use"
    assert value(in_use, **of_fallback, precision="fp32", digest="") == 0
    assert value(in_use, **of_engine, precision="fp32", digest="e1") == 1
    assert value("smelt_fallbacks_total", generation=node, reason="not_proven") == 1
    assert value("smelt_fallbacks_refuted_total", generation=node, reason="device") == 1
    assert value("smelt_batch_size_sum") == 7
    assert value("smelt_rows_total") == 7
    assert value("smelt_batch_size_count") == 3
    # Each of the two has its own; what the node is, it is with either.
    for kind in ("fallback", "onnxruntime"):
        here = {"generation": node, "kind": kind}
        assert value("smelt_queue_duration_seconds_sum", **here) == pytest.approx(0.75)
        assert value("smelt_batch_forming_duration_seconds_sum", **here) == pytest.approx(0.125)
        assert value("smelt_pad_duration_seconds_sum", **here) == pytest.approx(0.001)
        assert value("smelt_reply_duration_seconds_sum", **here) == pytest.approx(0.502)
        assert value("smelt_reply_duration_seconds_count", **here) == 1
    assert value("smelt_compute_duration_seconds_count", **of_fallback) == 1
    assert value("smelt_compute_duration_seconds_sum", **of_engine) == pytest.approx(0.01)
    assert value("smelt_engine_busy_seconds_total", **of_engine) == pytest.approx(0.01)
    assert value("smelt_engine_load_duration_seconds_sum", kind="onnxruntime") == 0.75


def test_a_fallback_that_was_compiled_is_counted_again_only_for_another_reason() -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(PrometheusRecorder(REPLICA_METRICS, registry), "m", "3", "g")

    def serve(reason: FallbackReason, *, is_interim: bool) -> None:
        metrics.engine_changed(
            loaded(kind="fallback", digest="", fallback_reason=reason, is_interim=is_interim)
        )

    def num_chosen(reason: FallbackReason) -> float | None:
        labels = {"model": "m", "version": "3", "generation": "g", "reason": reason.value}
        return registry.get_sample_value("smelt_fallbacks_total", labels)

    serve(FallbackReason.NO_ENGINE, is_interim=True)
    serve(FallbackReason.NO_ENGINE, is_interim=False)
    assert num_chosen(FallbackReason.NO_ENGINE) == 1
    serve(FallbackReason.NO_ENGINE, is_interim=True)
    serve(FallbackReason.NOT_PROVEN, is_interim=False)
    counts = num_chosen(FallbackReason.NO_ENGINE), num_chosen(FallbackReason.NOT_PROVEN)
    assert counts == (2, 1)


# ---------------------------------------------------------------- samples


def bucket(batch: int, sequence: tuple[int, int]) -> Bucket:
    low, high = sequence
    return Bucket(
        dims={
            "batch": DimRange(min=1, opt=1, max=batch),
            "sequence": DimRange(min=low, opt=high, max=high),
        }
    )


def test_both_edges_of_every_bucket_are_warmed_once_smallest_first() -> None:
    specs = text_model().master.inputs
    edges = warm_up_sizes(specs, (bucket(1, (1, 1)), bucket(8, (2, 16)), bucket(1, (1, 1))))
    assert edges == [
        {"batch": 1, "sequence": 1},
        {"batch": 1, "sequence": 2},
        {"batch": 8, "sequence": 16},
    ]


def test_what_may_be_empty_is_warmed_there_and_at_1_and_probed_where_there_is_something() -> None:
    specs = text_model().master.inputs
    assert warm_up_sizes(specs, (bucket(8, (0, 16)),)) == [
        {"batch": 1, "sequence": 0},
        {"batch": 1, "sequence": 1},
        {"batch": 8, "sequence": 16},
    ]
    assert probe_sizes(specs, (bucket(8, (0, 16)),)) == {"batch": 1, "sequence": 1}
    assert probe_sizes(specs, (bucket(8, (4, 16)),)) == {"batch": 1, "sequence": 4}


def test_a_static_model_is_warmed_once() -> None:
    model = make_model((TensorSpec(name="x", datatype="FP32", shape=(3,)),), ())
    assert warm_up_sizes(model.master.inputs, model.buckets) == [{}]


def test_samples_are_valid_inputs() -> None:
    specs = (
        TensorSpec(name="ids", datatype="INT64", shape=("batch", 2)),
        TensorSpec(name="mask", datatype="INT64", shape=("batch", 2)),
        TensorSpec(name="x", datatype="BF16", shape=(3,)),
        TensorSpec(name="word", datatype="BYTES", shape=("batch",)),
        TensorSpec(name="other", datatype="BYTES", shape=(2,)),
        TensorSpec(name="port", datatype="BYTES", shape=("batch", 2)),
        TensorSpec(name="code", datatype="FP32", shape=("batch", 2)),
    )
    recipes = {
        "ids": InputRecipe(role=InputRole.VALUES, low=5, high=9),
        "mask": InputRecipe(role=InputRole.MASK),
        "word": InputRecipe(values=("1.5", "2")),
    }
    codes = InputValues(choices=(("S", "C"), ()))
    known = {"word": codes, "port": codes, "code": InputValues(choices=((), (7, 9)))}
    master = make_model(specs, ()).master.model_copy(update={"input_values": known})
    inputs = sample_inputs(master, recipes, {"batch": 4})
    assert inputs["port"].tolist() == [["S", ""]] * 4
    assert inputs["code"].tolist() == [[0, 7]] * 4
    assert inputs["ids"].tolist() == [[5, 5]] * 4
    assert inputs["mask"].tolist() == [[1, 1]] * 4
    assert inputs["word"].tolist() == ["1.5"] * 4
    for spec in specs:
        check_array(spec, inputs[spec.name])


# ---------------------------------------------------------------- reports


async def test_a_report_tells_state_and_engine() -> None:
    model = text_model()
    device = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=1)
    host = EngineManager(None, model, device, lambda model: _NoEngine(), None)  # type: ignore[arg-type]
    changes: list[str] = []
    replica = Replica(model, device, host, NullRecorder(), on_change=lambda: changes.append("x"))

    def report() -> fleet.ReplicaReport:
        addresses = ["unix:/x", "127.0.0.1:5"]
        return report_from_replica(
            replica, model, device, replica_id="r", addresses=addresses, token=b"t" * 32
        )

    assert (report().state, report().engine_kind) == (fleet.REPLICA_STATE_LOADING, "")
    replica.loaded = loaded(
        kind="fallback", digest="", fallback_reason=FallbackReason.NO_ENGINE, detail="why"
    )
    replica.set_state(fleet.REPLICA_STATE_READY)
    assert changes == ["x"]
    told = report()
    assert (told.state, told.engine_kind) == (fleet.REPLICA_STATE_READY, "fallback")
    assert (told.fallback_reason, told.detail) == ("no_engine", "why")
    assert told.fallback_name == "nothing"
    assert told.fallback_refuted == ""
    wrong = Refutation(found_by=FoundBy.IMPORTER, words="ONNX Runtime serves")
    replica.loaded = replace(replica.loaded, refutation=wrong)
    assert report().fallback_refuted == "ONNX Runtime serves"
    assert not told.is_fallback_interim
    # It waits: nothing is compiled now.
    replica.loaded = replace(replica.loaded, is_interim=True)
    assert not report().is_fallback_interim
    replica.loaded = replace(replica.loaded, refutation=None)
    assert report().is_fallback_interim
    assert not told.engine_speeds
    assert told.data_token == b"t" * 32
    assert (told.model_name, told.model_version, told.replica_id) == ("m", 3, "r")
    assert DeviceFacts.from_json(told.device_facts_json) == device
    assert list(told.addresses) == ["unix:/x", "127.0.0.1:5"]
    replica.loaded = loaded(speeds={"static:batch=1": 40.0})
    assert [(each.shape, each.samples_per_s) for each in report().engine_speeds] == [
        ("static:batch=1", 40.0)
    ]
