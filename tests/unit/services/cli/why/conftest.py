"""The store that commands explain."""

from pathlib import Path

import pytest

from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from tests.unit.services.cli.why.explained import (
    INDUCTOR,
    KEYS,
    OPENVINO,
    ORT,
    POWER,
    SKIPPED,
    TIMING,
)
from tests.unit.services.controller import build_world as world


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A store in which ORT is proven, INDUCTOR quarantined and OPENVINO built elsewhere."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    made = world.registry_with_model(tmp_path)
    made.write_plan(world.plan(KEYS, skipped=(SKIPPED,)))
    made.publish_engine(world.manifest(ORT), {}, world.proof(timings=(TIMING,), power=(POWER,)))
    unproven = world.proof(ProofOutcome.NOT_RUN, device=None, reason="needs such a device")
    made.publish_engine(world.manifest(OPENVINO), {}, unproven)
    for _ in range(3):
        made.record_build(world.record(INDUCTOR, reason="no compiler"))
    return made
