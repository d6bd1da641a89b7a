"""What the page shows of each model and generation."""

from dataclasses import replace
from typing import Any

import pytest

from services.contracts.builds.build_record import BuildOutcome
from services.contracts.external.external_model import ExternalModel
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.selection.proof_checks import PowerCheck
from services.controller.build.build_view import FleetView
from services.controller.page.fleet_rows import Attention, Measured, fleet_document
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.page.page_host import (
    GENERATIONS,
    POWER,
    report,
    served_model,
    serving,
)

ORT, OPENVINO = world.KEYS
VIEW = FleetView(
    pools=(world.pool(num_nodes=2),),
    versions=(world.version(),),
    plans={("m", 1): (world.plan(),)},
)


def shown(
    *reports: fleet.ReplicaReport, view: FleetView | None = VIEW, **changes: Any
) -> dict[str, Any]:
    """Model `m` as the page has it."""
    unseen = changes.pop("unseen", [])
    builds = changes.pop("builds", [])
    model = served_model(**changes)
    snapshot = fleet.FleetSnapshot(models=[model], replicas=reports, unseen=unseen, builds=builds)
    (found,) = fleet_document(snapshot, view)["models"]
    return dict(found)


def row(*reports: fleet.ReplicaReport, **changes: Any) -> dict[str, Any]:
    """Its only row."""
    (found,) = shown(*reports, **changes)["rows"]
    return dict(found)


def with_engine(**changes: Any) -> FleetView:
    proof = world.proof(timings=world.paired(2.0, 2.2), **changes)
    return replace(VIEW, engines={OPENVINO.digest(): world.engine(OPENVINO, proof)})


@pytest.mark.parametrize(
    ("state", "reason", "attention"),
    [("READY", "", Attention.READY), ("UNAVAILABLE", "stuck: it", Attention.DOWN)],
)
def test_an_external_model_has_one_row_and_no_generation(
    state: str, reason: str, attention: Attention
) -> None:
    url = "grpc://t:8001"
    model = ExternalModel(name="m", version=1, url=url, remote_name="resnet")
    found = row(external_json=model.canonical_json(), state=state, reason=reason)
    words = reason or f"'resnet' of a KServe v2 server at {url}"
    assert (found["attention"], found["generation"], found["why"]) == (attention, "", words)


def test_an_engine_has_its_speed_and_what_its_proof_would_see() -> None:
    power = (POWER, PowerCheck(output="z", refused=("a",), tightened=("b",), blind=("c",)))
    found = row(serving("m", GENERATIONS[0], OPENVINO.digest()), view=with_engine(power=power))
    assert (found["attention"], found["state"], found["engine"]) == (
        Attention.READY,
        "ready",
        "openvino fp32",
    )
    assert (found["times"], found["is_wild"]) == (2.1, False)
    assert (found["num_seen"], found["num_tried"], found["blind"]) == (4, 6, ["c", "gain 2 % off"])


def test_an_engine_is_judged_once_for_each_of_its_proofs() -> None:
    reports = [serving("m", GENERATIONS[0], OPENVINO.digest())]
    snapshot = fleet.FleetSnapshot(models=[served_model()], replicas=reports)
    known: Measured = {}
    fleet_document(snapshot, with_engine(), known)
    ((facts, judged),) = known.items()
    # Whatever is known of that proof is shown again, and nothing of it once there is another.
    judged["times"] = 7.0
    (again,) = fleet_document(snapshot, with_engine(), known)["models"]
    assert again["rows"][0]["times"] == 7.0
    newer = with_engine(created_at="2026-01-02T00:00:00Z")
    (proven,) = fleet_document(snapshot, newer, known)["models"]
    assert proven["rows"][0]["times"] == 2.1
    assert len(known) == 1
    assert facts not in known


def test_without_the_store_only_what_replicas_report_is_shown() -> None:
    found = row(serving("m", GENERATIONS[0], OPENVINO.digest()), view=None)
    assert (found["state"], found["engine"]) == ("ready", "openvino fp32")
    assert (found["times"], found["num_tried"]) == (None, 0)


LOADING = fleet.REPLICA_STATE_LOADING


@pytest.mark.parametrize(
    ("reports", "changes", "attention", "state", "why"),
    [
        ([report()], {}, Attention.FALLBACK, "on the fallback", "no proven engine of this model"),
        ([report(state=LOADING)], {}, Attention.ON_THE_WAY, "loading", "loads an engine"),
        (
            [report(state=LOADING, device_facts_json=b"")],
            {},
            Attention.ON_THE_WAY,
            "loading",
            "loads an engine",
        ),
        (
            [report(state=fleet.REPLICA_STATE_FAILED, detail="no memory")],
            {},
            Attention.DOWN,
            "failed",
            "no memory",
        ),
        ([], {"unplaced": "no GPU has 4 GiB"}, Attention.DOWN, "no room", "no GPU has 4 GiB"),
        (
            [],
            {"state": "UNAVAILABLE", "reason": "it ended"},
            Attention.DOWN,
            "unavailable",
            "it ended",
        ),
        (
            [],
            {"state": "STANDBY", "reason": "its next request loads it"},
            Attention.READY,
            "standby",
            "its next request loads it",
        ),
        ([], {"unseen": [report()]}, Attention.DOWN, "lost", "broke"),
        ([report()], {"is_unloaded": True}, Attention.UNLOADED, "unloaded", ""),
    ],
)
def test_each_state_says_why(
    reports: Any, changes: Any, attention: Attention, state: str, why: str
) -> None:
    found = row(*reports, **changes)
    assert (found["attention"], found["state"]) == (attention, state)
    assert why in found["why"]
    assert found["engine"] in ("", "fallback (ONNX Runtime)")


def test_a_build_that_failed_comes_before_what_serves() -> None:
    failed = [world.record(ORT, BuildOutcome.FAILED, reason="signal 11 " + "x" * 5000)] * 3
    view = replace(with_engine(), records={ORT.digest(): failed})
    model = shown(serving("m", GENERATIONS[0], OPENVINO.digest()), view=view)
    (found,) = model["rows"]
    assert (model["attention"], found["state"]) == (Attention.FAILED, "ready")
    assert found["trouble"].startswith("onnxruntime fp32: quarantined: signal 11")
    assert (len(found["trouble"]), found["num_troubles"]) == (240, 1)


@pytest.mark.parametrize(("precision", "is_failure"), [("fp32", True), ("bf16", False)])
def test_a_precision_that_auto_tries_and_a_proof_refuses_is_no_failure(
    precision: str, *, is_failure: bool
) -> None:
    key = world.key(EngineKind.OPENVINO, precision=Precision(precision))
    plans = {("m", 1): (world.plan((key,)),)}
    view = replace(VIEW, plans=plans, records={key.digest(): [world.refusal(key)]})
    assert bool(row(report(), view=view)["trouble"]) == is_failure


def test_each_generation_with_nodes_or_replicas_has_a_row_and_the_worst_counts() -> None:
    elsewhere = serving("m", "cuda-sm90", "d" * 64)
    model = shown(elsewhere)
    assert [(each["generation"], each["state"]) for each in model["rows"]] == [
        (world.GENERATION, "loading"),
        ("cuda-sm90", "ready"),
    ]
    assert model["attention"] == Attention.ON_THE_WAY


def test_builds_stand_in_their_order_and_beside_the_model() -> None:
    place = {"model_name": "m", "model_version": 1, "generation": world.GENERATION, "reason": "new"}
    running = fleet.FleetBuild(**place, started_at=world.AT)
    assert row(report(), builds=[running])["is_building"]
    waiting = [fleet.FleetBuild(**place)] * 200
    snapshot = fleet.FleetSnapshot(builds=[running, *waiting])
    document = fleet_document(snapshot, None)
    assert (len(document["builds"]), document["num_builds"]) == (100, 201)
    assert [build["started_at"] for build in document["builds"][:2]] == [world.AT, None]
    assert document["is_read"] is False
