"""Buckets that a fleet learns from its traffic: applied, built, proven and served meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.contracts.hardware.kinds import EngineKind
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ProofOutcome
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.load import OK, Load
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home, ready_in
from tests.integration.fleet.onnx_files import write_texts
from tests.process_server import environment_of_forks, forked_children

__all__ = ["forked_children"]  # a fixture

NUM_WORDS, LONGEST = 100, 512
TABLE = np.random.default_rng(0).standard_normal((NUM_WORDS, 8)).astype(np.float32)
# A model of one length, as many are exported: replicas pad each request to it.
RECIPE = """
kinds: [onnxruntime]
precisions: [fp32]
num_replicas: 1
inputs: {ids: {low: 0, high: 100}, mask: {role: mask}}
buckets:
- dims: {batch: {min: 1, opt: 8, max: 8}, sequence: {min: 512, opt: 512, max: 512}}
sampling: {rate_per_s: 100, window_s: 1}
"""


class Texts(Load):
    """Requests of one text: half have at most 32 words, few have hundreds."""

    def _drawn(self) -> dict[str, Array]:
        length = np.clip(np.ceil(self._rng.lognormal(np.log(32), 0.9)), 2, LONGEST)
        ids = self._rng.integers(0, NUM_WORDS, (1, int(length)))
        return {"ids": ids, "mask": np.ones_like(ids)}


def _is_sum(ids: Array, found: Array) -> bool:
    return np.allclose(found, TABLE[ids].sum(axis=1), atol=1e-3)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[LocalFleet]:
    """A fleet that builds, with an engine of the one length."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    source = write_texts(folder / "texts.onnx", TABLE)
    quick = {
        "SMELT_CONTROLLER_BUILDS": "true",
        "SMELT_CONTROLLER_RESYNC_S": "2",
        "RAY_metrics_report_interval_ms": "1000",
    }
    with fleet_home(**quick, **environment_of_forks()) as fleet:
        await asyncio.to_thread(fleet.up)
        add = ("models", "add", "texts", str(source), "--recipe", str(recipe))
        await asyncio.to_thread(fleet.smelt, *add)
        await asyncio.to_thread(fleet.wait_until, lambda seen: versions_built(seen) == [1])
        await asyncio.to_thread(fleet.wait_ready, "texts", 1)
        yield fleet


def versions_built(seen: pb.FleetSnapshot) -> list[int]:
    """Versions of the replicas, if all are ready and have an engine."""
    replicas = [replica for replica in seen.replicas if replica.model_name == "texts"]
    built = [r for n in (1, 2) for r in ready_in(seen, "texts", n) if r.engine_kind]
    return [replica.model_version for replica in built] if len(built) == len(replicas) else []


async def measured(fleet: LocalFleet, load: Load) -> Any:
    """`smelt buckets` of the newest version by what its replicas counted."""
    status = await asyncio.to_thread(fleet.smelt, "status")
    pages = status["replica_metrics_addresses"]
    options = [word for page in pages for word in ("--metrics", page)]
    while True:
        await load.wait_for(OK, 100)
        command = ("buckets", "texts", *options, "--json")
        done = await asyncio.to_thread(fleet.smelt_process, *command)
        found = json.loads(done.stdout) if not done.returncode else {"num_requests": 0}
        if found["num_requests"] > 100:
            return found


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
async def test_applied_buckets_are_served_without_a_failed_request_and_pad_less(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as fleet:
        store = open_store(str(fleet.home / "store"))
        registry = Registry(store, tmp_path / "cache")
        load = Texts(fleet.address, "texts", _is_sum, LONGEST)
        async with load.running(num_callers=8):
            while sum(w.num_samples for w in registry.sample_windows("texts").values()) < 300:
                await load.wait_for(OK, 50)
            before = await measured(fleet, load)
            applied = await asyncio.to_thread(fleet.smelt, "buckets", "texts", "--apply")
            assert applied["published"] == 2
            await asyncio.to_thread(fleet.wait_until, lambda seen: versions_built(seen) == [2])
            after = await measured(fleet, load)
        version = registry.model_version("texts")
        engines = registry.engines(version.master.digest)
    assert (set(load.outcomes), load.num_wrong) == ({OK}, 0), load.failures
    (engine,) = [each for each in engines if each.manifest.key.buckets == version.buckets]
    assert engine.manifest.key.kind is EngineKind.ONNXRUNTIME
    assert engine.proof.outcome is ProofOutcome.PASSED
    advice = applied["dimensions"]["sequence"]
    assert [bucket.dims["sequence"].max for bucket in version.buckets] == advice["proposed"]
    # Of what replicas computed, and of what is computed at the largest size of each bucket.
    for old, new in (
        (before["measured_waste"], after["measured_waste"]),
        (advice["waste_now"], advice["waste_proposed"]),
    ):
        print(f"padding {old:.1%} before, {new:.1%} after")
        assert new / (1 - new) < old / (1 - old) / 2
