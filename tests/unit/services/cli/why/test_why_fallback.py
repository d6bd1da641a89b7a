"""`smelt why` of a model that a fallback serves: which one, and what was found of its graph."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.contracts.model.recipe import Recipe
from services.contracts.selection.fallback_verdict import FallbackVerdict
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.cli.fleet_stub import fleet_saying, replica
from tests.unit.services.controller import build_world as world

FAULT = "output 'y', bucket b at batch=3: rel_l2 1.20e-02 found, 1.00e-05 allowed"
REASON = "no proven engine of this model is published"
INTERIM = "ONNX Runtime serves while torch compiles the fallback"
IN_PLACE = f"ONNX Runtime serves in place of torch.compile, whose graph is imported wrong: {FAULT}"


@pytest.mark.parametrize(
    ("verdict", "reported", "told"),
    [
        (
            FallbackVerdict(refuted=FAULT, num_samples=9),
            {"fallback_name": "ONNX Runtime", "fallback_refuted": IN_PLACE},
            [f"serves with the fallback (ONNX Runtime): {REASON}; {IN_PLACE} (1 replica)"],
        ),
        (
            FallbackVerdict(refuted=FAULT, num_samples=9),
            {},
            [f"the fallback's graph is refuted, so ONNX Runtime serves in its place: {FAULT}"],
        ),
        (
            FallbackVerdict(witness="ONNX Runtime 1.2", num_samples=9),
            {},
            [
                f"serves with the fallback (torch.compile): {REASON} (1 replica)",
                "the fallback's graph agrees with ONNX Runtime 1.2 at 9 samples",
            ],
        ),
        (
            None,
            {},
            [f"serves with the fallback (torch.compile): {REASON} (1 replica)"],
        ),
        (
            None,
            {"fallback_name": "ONNX Runtime", "is_fallback_interim": True},
            [f"serves with the fallback (ONNX Runtime): {REASON}; {INTERIM} (1 replica)"],
        ),
    ],
)
def test_which_fallback_and_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: FallbackVerdict | None,
    reported: dict[str, Any],
    told: list[str],
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    registry = world.registry_with_model(tmp_path)
    registry.add_model_version(
        name="m",
        master=world.MASTER,
        recipe=Recipe(num_replicas=2),
        source="s",
        source_fingerprint="1",
        fallback_verdict=verdict,
    )
    report = replica(2, **reported)
    snapshot = fleet.FleetSnapshot(store_url=str(tmp_path / "store"), replicas=[report])
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        text, document = (
            CliRunner().invoke(app, ["why", "m", *more], catch_exceptions=False).output
            for more in ([], ["--json"])
        )
    for line in told:
        assert line in text
    [case] = json.loads(document)["generations"]
    assert case["replicas"][0]["fallback_refuted"] == reported.get("fallback_refuted", "")
    assert case["fallback_verdict"] == (verdict and verdict.model_dump(mode="json"))


def test_why_no_replica_can_serve_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    world.registry_with_model(tmp_path)
    snapshot = fleet.FleetSnapshot(store_url=str(tmp_path / "store"))
    snapshot.models.add(name="m", version=1, state="UNAVAILABLE", reason="no such category")
    with fleet_saying(snapshot) as address:
        monkeypatch.setenv("SMELT_CONTROLLER", address)
        done = CliRunner().invoke(app, ["why", "m"], catch_exceptions=False)
    assert done.output.splitlines()[0] == "m: no such category"
