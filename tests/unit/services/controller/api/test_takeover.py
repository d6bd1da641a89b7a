"""Which version answers while the newest has no engine, in cases that can be read."""

import json

import pytest

from services.controller.api.fleet_state import FleetState
from services.controller.api.takeover import answering_versions
from services.pb import fleet_v1_pb2 as fleet

SM89, SM90 = "cuda-sm89", "cuda-sm90"
# A model's versions, by number: engines of the replicas that are ready, by generation.
Replicas = dict[int, dict[str, str]]


def models(*versions: int, **fields: object) -> list[fleet.ServedModel]:
    return [fleet.ServedModel(name="m", version=each, **fields) for each in versions]  # type: ignore[arg-type]


def report(version: int, generation: str, engine: str) -> fleet.ReplicaReport:
    return fleet.ReplicaReport(
        replica_id=f"{version} {generation}",
        model_name="m",
        model_version=version,
        state=fleet.REPLICA_STATE_READY,
        engine_digest=engine,
        device_facts_json=json.dumps({"generation": generation}).encode(),
    )


def reports(replicas: Replicas) -> list[fleet.ReplicaReport]:
    return [
        report(version, generation, engine)
        for version, found in replicas.items()
        for generation, engine in found.items()
    ]


@pytest.mark.parametrize(
    ("replicas", "coming", "answering"),
    [
        ({1: {SM90: "a"}, 2: {SM90: ""}}, {SM90}, {"m": 1}),
        # Its replicas start, or have no room beside the one before.
        ({1: {SM90: "a"}}, {SM90}, {"m": 1}),
        ({1: {SM90: "a"}, 2: {SM90: "b"}}, {SM90}, {}),
        # None is to come: all builds failed, or no compiler runs.
        ({1: {SM90: "a"}, 2: {SM90: ""}}, set(), {}),
        # As slow as the newest.
        ({1: {SM90: ""}, 2: {SM90: ""}}, {SM90}, {}),
        # Where the one before had none, there is nothing to wait for.
        ({1: {SM89: "a", SM90: ""}, 2: {SM89: "b", SM90: ""}}, {SM90}, {}),
        ({1: {SM89: "a", SM90: "b"}, 2: {SM89: "c", SM90: ""}}, {SM90}, {"m": 1}),
        ({1: {SM90: "a"}, 2: {SM90: "b"}, 3: {SM90: ""}}, {SM90}, {"m": 2}),
        # The second never had one: the first answers on.
        ({1: {SM90: "a"}, 2: {SM90: ""}, 3: {SM90: ""}}, {SM90}, {"m": 1}),
    ],
)
def test_the_one_before_answers_until_an_engine_is_there_or_none_comes(
    replicas: Replicas, coming: set[str], answering: dict[str, int]
) -> None:
    known = models(*sorted({*replicas, 2}))

    def is_coming(name: str, version: int, generation: str) -> bool:
        return (name, version) == ("m", known[-1].version) and generation in coming

    assert answering_versions(known, reports(replicas), is_coming) == answering


@pytest.mark.parametrize("field", [{"weight": 0.1}, {"is_unloaded": True}, {"external_json": b"x"}])
def test_what_an_owner_decided_stays(field: dict[str, object]) -> None:
    replicas = reports({1: {SM90: "a"}, 2: {SM90: ""}})
    assert answering_versions(models(1, 2, **field), replicas, lambda *_: True) == {}


def shown(state: FleetState) -> dict[int, tuple[float, bool]]:
    """Weight of each version, and whether it is said that another one answers."""
    found = state.snapshot().models
    return {each.version: (each.weight, "version 1 answers" in each.reason) for each in found}


def test_a_snapshot_has_who_answers_until_builds_are_over() -> None:
    state = FleetState("store", 1)
    for model in models(1, 2, state="READY"):
        state.set_model(model)
    replicas = [state.attach(each) for each in reports({1: {SM90: "a"}, 2: {SM90: ""}})]
    apart = {1: (0.0, False), 2: (0.0, False)}
    held = {1: (1.0, False), 2: (0.0, True)}
    # Nothing builds here.
    assert shown(state) == apart
    # The build loop began, and has not looked yet.
    state.set_builds([], frozenset())
    assert shown(state) == held
    build = fleet.FleetBuild(model_name="m", model_version=2, generation=SM90)
    state.set_builds([build], {("m", 1), ("m", 2)})
    assert shown(state) == held
    revision = state.revision
    state.set_builds([], {("m", 1), ("m", 2)})
    assert shown(state) == apart
    assert state.revision > revision
    state.set_builds([build], {("m", 1), ("m", 2)})
    # Another controller builds: what it does is not known here.
    state.set_standby(fleet.Standby(holder="other"))
    assert shown(state) == apart
    state.set_standby(None)
    state.update(replicas[1], report(2, SM90, "b"))
    assert shown(state) == apart
