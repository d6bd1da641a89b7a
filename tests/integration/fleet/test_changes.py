"""A fleet that changes while it serves: new models, better engines, new versions."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from services.contracts.kserve.tensors import Array
from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.load import OK, Load, concurrent
from tests.integration.fleet.local_fleet import LocalFleet, ready_in
from tests.integration.fleet.onnx_files import write_recipe, write_scaled

WIDTH = 6


class Checks:
    """Right answers of a model that multiplies by one of these factors; counts each.

    Attributes:
        counts: number of answers by factor.
    """

    def __init__(self, *factors: float) -> None:
        self.counts = dict.fromkeys(factors, 0)

    def __call__(self, x_BF: Array, y_BF: Array) -> bool:
        for factor in self.counts:
            if np.allclose(y_BF, x_BF * factor, rtol=1e-5):
                self.counts[factor] += 1
                return True
        return False


def kinds_in_use(snapshot: pb.FleetSnapshot, model: str) -> list[str]:
    return [replica.engine_kind for replica in ready_in(snapshot, model)]


def versions_in(snapshot: pb.FleetSnapshot) -> set[int]:
    """Versions of model `rolled` that the fleet has, as models or in replicas."""
    models = {model.version for model in snapshot.models if model.name == "rolled"}
    return models | {r.model_version for r in snapshot.replicas if r.model_name == "rolled"}


@pytest.mark.slow
async def test_a_model_added_while_the_fleet_runs_becomes_ready(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    source = write_scaled(tmp_path / "added.onnx", 2.0)
    recipe = write_recipe(tmp_path / "added.yaml", 1, features=WIDTH)
    await asyncio.to_thread(fleet.add, "added", source, recipe)
    await asyncio.to_thread(fleet.wait_ready, "added", 1)
    load = await concurrent(fleet.address, "added", Checks(2.0), WIDTH, num_calls=50)
    assert (set(load.outcomes), load.num_wrong) == ({OK}, 0)


async def test_replicas_swap_to_another_engine_under_load(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """One kind is built, serves, and is followed by another; no request notices."""
    source = write_scaled(tmp_path / "swapped.onnx", 3.0)
    recipe = write_recipe(tmp_path / "swapped.yaml", 2, features=WIDTH)
    await asyncio.to_thread(
        fleet.smelt, "models", "add", "swapped", str(source), "--recipe", str(recipe)
    )
    # Nothing is built yet, so both replicas begin on the fallback; a proven engine of any
    # kind is better than that, whatever its speed on this machine.
    await asyncio.to_thread(fleet.wait_ready, "swapped", 2)
    replicas = fleet.replicas("swapped")
    assert {replica["fallback_reason"] for replica in replicas} == {"no_engine"}
    load = Load(fleet.address, "swapped", Checks(3.0), WIDTH)
    async with load.running(num_callers=16):
        await load.wait_for(OK, 100)
        await asyncio.to_thread(fleet.build, "swapped", "openvino")
        await asyncio.to_thread(
            fleet.wait_until, lambda seen: kinds_in_use(seen, "swapped") == ["openvino"] * 2
        )
        await load.wait_for(OK, 100)
    assert (set(load.outcomes), load.num_wrong) == ({OK}, 0), load.failures
    after = fleet.replicas("swapped")
    assert {r["process_id"] for r in after} == {r["process_id"] for r in replicas}
    assert {r["fallback_reason"] for r in after} == {""}


@pytest.mark.slow
async def test_a_new_version_takes_over(fleet: LocalFleet, tmp_path: Path) -> None:
    """Unversioned requests go over from one version to the next; none fails or is mixed up."""
    old = write_scaled(tmp_path / "old.onnx", 5.0)
    new = write_scaled(tmp_path / "new.onnx", 7.0)
    recipe = write_recipe(tmp_path / "rolled.yaml", 1, features=WIDTH)
    await asyncio.to_thread(fleet.add, "rolled", old, recipe)
    await asyncio.to_thread(fleet.wait_ready, "rolled", 1)
    checks = Checks(5.0, 7.0)
    load = Load(fleet.address, "rolled", checks, WIDTH)
    async with load.running(num_callers=16):
        await load.wait_for(OK, 100)
        assert checks.counts[7.0] == 0
        await asyncio.to_thread(fleet.add, "rolled", new, recipe)
        await asyncio.to_thread(fleet.wait_ready, "rolled", 1, 2)
        await asyncio.to_thread(fleet.wait_until, lambda seen: versions_in(seen) == {2})
        before = checks.counts[5.0]
        await load.wait_for(OK, 100)
    assert (set(load.outcomes), load.num_wrong) == ({OK}, 0), load.failures
    assert checks.counts[7.0] >= 100
    # What was on its way to the old version when it left may still have come from it.
    assert checks.counts[5.0] - before <= 16
    assert len(fleet.replicas("rolled")) == 1
