"""Replicas wanted and attached, as gauges."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from services.contracts.hardware.facts import DeviceFacts
from services.controller.api.fleet_state import FleetState
from services.controller.metrics.controller_metrics import FleetMetrics
from services.pb import fleet_v1_pb2 as fleet
from services.telemetry.catalog import (
    CONTROLLER_METRICS,
    MODELS_UNPLACED,
    REPLICAS_ATTACHED,
    REPLICAS_WANTED,
)
from services.telemetry.prometheus_recorder import PrometheusRecorder

DEVICE = DeviceFacts(generation="cuda-sm90", name="H200", memory_gib=139)


@pytest.fixture
def collectors() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(collectors: CollectorRegistry) -> FleetMetrics:
    return FleetMetrics(PrometheusRecorder(CONTROLLER_METRICS, collectors))


def report(
    replica_id: str, state: "fleet.ReplicaState", kind: str = "", reason: str = ""
) -> fleet.ReplicaReport:
    return fleet.ReplicaReport(
        replica_id=replica_id,
        model_name="m",
        model_version=2,
        state=state,
        engine_kind=kind,
        fallback_reason=reason,
        device_facts_json=DEVICE.canonical_json(),
    )


def attached(
    collectors: CollectorRegistry, state: str, kind: str, reason: str = ""
) -> float | None:
    labels = {"model": "m", "version": "2", "generation": "cuda-sm90"}
    return collectors.get_sample_value(
        REPLICAS_ATTACHED.name, labels | {"state": state, "kind": kind, "reason": reason}
    )


def test_replicas_by_state_and_kind(metrics: FleetMetrics, collectors: CollectorRegistry) -> None:
    ready, loading = fleet.REPLICA_STATE_READY, fleet.REPLICA_STATE_LOADING
    replicas = [
        report("a", ready, "tensorrt"),
        report("b", ready, "fallback", "slower_than_fallback"),
        report("c", ready, "fallback", "no_engine"),
        report("d", loading),
    ]
    metrics.show(fleet.FleetSnapshot(replicas=replicas))
    assert attached(collectors, "ready", "fallback", "no_engine") == 1
    assert attached(collectors, "ready", "fallback", "slower_than_fallback") == 1
    assert attached(collectors, "ready", "tensorrt") == 1
    assert attached(collectors, "loading", "") == 1
    replicas[1].engine_kind, replicas[1].fallback_reason = "tensorrt", ""
    metrics.show(fleet.FleetSnapshot(replicas=replicas[:2]))
    assert attached(collectors, "ready", "fallback", "no_engine") == 0
    assert attached(collectors, "ready", "fallback", "slower_than_fallback") == 0
    assert attached(collectors, "ready", "tensorrt") == 2
    assert attached(collectors, "loading", "") == 0


def test_a_model_without_room_is_seen_until_it_has_some(
    metrics: FleetMetrics, collectors: CollectorRegistry
) -> None:
    for unplaced, value in (("needs 9.1 GiB", 1), ("", 0)):
        model = fleet.ServedModel(name="m", version=2, unplaced=unplaced)
        metrics.show(fleet.FleetSnapshot(models=[model]))
        labels = {"model": "m", "version": "2"}
        assert collectors.get_sample_value(MODELS_UNPLACED.name, labels) == value


async def test_it_follows_the_state(
    metrics: FleetMetrics, collectors: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, shown = metrics.show, asyncio.Queue[float | None]()

    def show_and_tell(snapshot: fleet.FleetSnapshot) -> None:
        show(snapshot)
        labels = {"model": "m", "version": "2"}
        shown.put_nowait(collectors.get_sample_value(REPLICAS_WANTED.name, labels))

    monkeypatch.setattr(metrics, "show", show_and_tell)
    state = FleetState("store", 1)
    following = asyncio.create_task(metrics.follow(state))
    async with asyncio.timeout(30):
        assert await shown.get() is None
        state.set_model(fleet.ServedModel(name="m", version=2, num_replicas_wanted=3))
        assert await shown.get() == 3
        state.remove_model("m", 2)
        assert await shown.get() == 0
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


def test_a_replica_of_a_newer_release_is_counted_where_it_is(
    metrics: FleetMetrics, collectors: CollectorRegistry
) -> None:
    for facts in (b'{"generation": "cuda-sm90", "new_field": 1}', b"no json", b"[]", b""):
        report = fleet.ReplicaReport(
            model_name="m",
            model_version=2,
            state=fleet.REPLICA_STATE_READY,
            engine_kind="tensorrt",
            device_facts_json=facts,
        )
        metrics.show(fleet.FleetSnapshot(replicas=[report]))
        labels = {
            "model": "m",
            "version": "2",
            "generation": "cuda-sm90" if b"sm90" in facts else "",
            "kind": "tensorrt",
            "state": "ready",
            "reason": "",
        }
        assert collectors.get_sample_value(REPLICAS_ATTACHED.name, labels) == 1
