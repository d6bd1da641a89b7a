"""What a replica says of itself at intervals."""

from prometheus_client import CollectorRegistry

from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.reporting.replica_metrics import ReplicaMetrics
from services.telemetry.catalog import ENGINE_IN_USE, QUEUE_REQUESTS, QUEUE_USED, REPLICA_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder

PLACE = {"model": "m", "version": "3", "generation": "cuda-sm90"}


class _NoEngine:
    def run(self, inputs: object) -> dict[str, object]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing."""


def test_queue_and_engine_are_said_again() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(REPLICA_METRICS, registry)
    metrics = ReplicaMetrics(recorder, "m", "3", "cuda-sm90")
    metrics.show_now(0, 0.25)
    assert registry.get_sample_value(QUEUE_USED.name, PLACE) == 0.25
    engine = LoadedEngine(
        engine=_NoEngine(),  # type: ignore[arg-type]
        buckets=(),
        kind="tensorrt",
        precision="fp16",
        generation="cuda-sm90",
        digest="e1",
    )
    metrics.engine_changed(engine)
    in_use = PLACE | {"kind": "tensorrt", "precision": "fp16", "digest": "e1"}
    # As Ray does with a gauge that is not set for a while.
    recorder.set(ENGINE_IN_USE, 0, **in_use)
    metrics.show_now(48, 0.75)
    assert registry.get_sample_value(ENGINE_IN_USE.name, in_use) == 1
    assert registry.get_sample_value(QUEUE_REQUESTS.name, PLACE) == 48
