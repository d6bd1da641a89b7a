"""A snapshot of the controller becomes values; one bad model leaves the others alone."""

import json
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.hardware.facts import DeviceFacts
from services.contracts.model.manifest import ModelVersion
from services.gateway.routing.fleet_view import fleet_view_from_snapshot
from services.pb import fleet_v1_pb2 as fleet

DEVICE = DeviceFacts(generation="cpu-x86_64-v3", name="cpu", memory_gib=8)


def _served(model: ModelVersion) -> fleet.ServedModel:
    return fleet.ServedModel(
        name=model.name,
        version=model.version,
        model_version_json=model.canonical_json(),
        state="UNAVAILABLE",
        reason="loading",
    )


def test_models_and_replicas_are_read(new_model: Callable[..., ModelVersion]) -> None:
    one, two = new_model(version=1), new_model(version=2)
    snapshot = fleet.FleetSnapshot(models=[_served(one), _served(two)])
    snapshot.replicas.add(
        replica_id="r1",
        model_name="minilm",
        model_version=2,
        state=fleet.REPLICA_STATE_READY,
        addresses=["unix:/a"],
        host_id="h",
        device_facts_json=DEVICE.canonical_json(),
        engine_kind="openvino",
    )
    snapshot.replicas.add(replica_id="r2", state=fleet.REPLICA_STATE_DRAINING)
    view = fleet_view_from_snapshot(snapshot)
    assert view.is_known
    assert [served.document for served in view.models["minilm"].values()] == [one, two]
    assert view.models["minilm"][1].reason == "loading"
    ready, draining = view.replicas["r1"], view.replicas["r2"]
    assert (ready.is_ready, draining.is_ready) == (True, False)
    assert (ready.generation, draining.generation) == ("cpu-x86_64-v3", "")
    assert (ready.addresses, ready.model_version, ready.engine.kind) == (
        ("unix:/a",),
        2,
        "openvino",
    )


def test_a_model_that_cannot_be_read_is_left_out(
    new_model: Callable[..., ModelVersion], caplog: pytest.LogCaptureFixture
) -> None:
    broken = fleet.ServedModel(name="broken", version=3, model_version_json=b'{"name": 1}')
    snapshot = fleet.FleetSnapshot(models=[broken, _served(new_model())])
    snapshot.replicas.add(replica_id="r1", device_facts_json=b"no json")
    with caplog.at_level(logging.ERROR):
        view = fleet_view_from_snapshot(snapshot)
    assert list(view.models) == ["minilm"]
    assert view.replicas["r1"].generation == ""
    assert any("model 'broken' version 3 skipped" in line for line in caplog.messages)


NESTED = b"[" * 200_000
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("generation"), inner),
)
_FACTS = (
    st.binary()
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([NESTED, b'{"generation": ' + NESTED, b'{"generation": 1e999}'])
)
_REPORTS = st.builds(
    fleet.ReplicaReport,
    replica_id=st.text(),
    model_name=st.text(),
    model_version=st.integers(-(2**63), 2**63 - 1),
    state=st.sampled_from([0, 1, 2, 3, 4, 77]),
    addresses=st.lists(st.text()),
    data_token=st.binary(),
    device_facts_json=_FACTS,
    engine_speeds=st.lists(
        st.builds(fleet.EngineSpeed, shape=st.text(), samples_per_s=st.floats()), max_size=3
    ),
)


@given(hostile=st.lists(_REPORTS, min_size=1, max_size=4), unseen=st.lists(_REPORTS, max_size=2))
def test_whatever_some_replicas_report_the_others_are_read(
    hostile: list[fleet.ReplicaReport], unseen: list[fleet.ReplicaReport]
) -> None:
    good = fleet.ReplicaReport(
        replica_id="the good one", device_facts_json=DEVICE.canonical_json(), addresses=["unix:/a"]
    )
    snapshot = fleet.FleetSnapshot(replicas=[*hostile, good], unseen=unseen)
    view = fleet_view_from_snapshot(snapshot)
    assert view.replicas["the good one"].generation == DEVICE.generation
    assert view.replicas.keys() == {r.replica_id for r in (*hostile, good, *unseen)}
