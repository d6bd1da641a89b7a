"""Int8 that was calibrated with what requests were, and no longer are: refused, then mended."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler_worker.building.pipeline import build_model
from compiler_worker.plans.build_keys import Wanted
from compiler_worker.worker_context import WorkerContext
from services.cli.models.add import AddOptions, add_model
from services.cli.output.progress import Steps
from services.contracts.builds.build_record import BuildOutcome, BuildRecord
from services.contracts.errors import InvalidRequestError, StoreError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.traffic.recalibration import publish_calibrated, traffic_state
from services.contracts.traffic.sampled_rows import SampledRow
from services.controller.build.traffic_watch import TrafficWatch
from tests.faults.judged import normal, record_of, written
from tests.process_server import forked_children

__all__ = ["forked_children"]  # a fixture


GRAPH = """g (float[batch, 16] x) => (float[batch, 8] y)
    { h = MatMul (x, w1) a = Relu (h) y = MatMul (a, w2) }"""
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
ASKED = {
    "kinds": [EngineKind.ONNXRUNTIME],
    "precisions": [Precision.INT8],
    "buckets": [{"dims": {"batch": {"min": 1, "opt": 4, "max": 8}}}],
    "sampling": {},
    "calibration": "traffic",
}


class World:
    """A model whose requests are sampled and sealed, and a compiler that has the key."""

    def __init__(
        self,
        worker: WorkerContext,
        folder: Path,
        *,
        is_built: bool = False,
        engines: Mapping[str, Any] = ASKED,
    ) -> None:
        key = folder / "samples.key"
        key.write_text("5a" * 32)
        store = open_store(worker.settings.store_url)
        self.registry = Registry(store, worker.settings.cache_dir, key)
        self.worker = replace(worker, registry=self.registry)
        recipe = Recipe.model_validate(engines)
        path = written(folder, GRAPH, w1=normal(16, 32), w2=normal(32, 8, seed=2))
        if is_built:
            options = AddOptions(recipe=recipe)
            self.version = add_model(self.registry, "m", str(path), options, Steps(is_quiet=True))
        else:
            self.version = self.registry.add_model_version(
                name="m",
                master=record_of(onnx.load(path)),
                recipe=recipe,
                source="",
                source_fingerprint="",
            )

    def serve(self, day: int, scale: float, num: int = 200) -> None:
        """A day of requests whose values have this size."""
        x = np.random.default_rng(day).normal(0, scale, (num, 16)).astype(np.float32)
        span = (BEGAN + timedelta(days=day - 1), BEGAN + timedelta(days=day))
        rows = [SampledRow("b", {"x": row}) for row in x]
        self.registry.add_sample_window("m", self.version.version, span, rows, {"b": num})

    def built(self, version: ModelVersion) -> BuildRecord:
        (record,) = build_model(version, Wanted(), self.worker).records
        return record


@pytest.fixture
def world(worker: WorkerContext, tmp_path: Path) -> World:
    return World(worker, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_large_values_after_small_ones_are_refused_and_mended(
    worker: WorkerContext, tmp_path: Path
) -> None:
    world = World(worker, tmp_path, is_built=True)
    registry = world.registry
    world.serve(day=1, scale=0.01)
    small = publish_calibrated(registry, world.version)
    record = world.built(small)
    assert (record.outcome, record.reason) == (BuildOutcome.PROVEN, "")
    assert record.proof is not None
    assert record.proof.samples["traffic"] > 0
    assert "samples from 2026-11-01T00:00" in record.key.calibration_digest
    assert not traffic_state(registry, small).is_due

    world.serve(day=2, scale=1.0)
    state = traffic_state(registry, small)
    assert state.is_due
    assert "no longer what it was calibrated with: values x 0." in state.words
    mended = publish_calibrated(registry, small)
    # What was calibrated with the small ones, held to what requests are now.
    trap = registry.add_changed_version(mended, {"calibration": small.calibration})
    record = world.built(trap)
    assert record.outcome is BuildOutcome.PROOF_FAILED
    assert "rel_l2" in record.reason
    assert record.proof is not None
    assert record.proof.worst is not None
    assert (record.proof.worst.variant, record.proof.worst.arrays) == ("traffic", None)

    again = registry.add_changed_version(trap, {"calibration": mended.calibration})
    record = world.built(again)
    assert (record.outcome, record.reason) == (BuildOutcome.PROVEN, "")
    assert not traffic_state(registry, again).is_due


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_fp8_of_another_generation_is_calibrated_with_what_requests_are(
    worker: WorkerContext, tmp_path: Path
) -> None:
    """Scales of activations are in the plan: other traffic is another engine."""
    pytest.importorskip("tensorrt_rtx", reason="install tensorrt-rtx-cu13")
    kinds = {"kinds": [EngineKind.TENSORRT], "precisions": [Precision.FP8]}
    world = World(worker, tmp_path, is_built=True, engines={**ASKED, **kinds})
    wanted = Wanted(generations=(Generation.parse("cuda-sm89"),))
    version = world.version
    records: list[BuildRecord] = []
    for day, scale in ((1, 0.01), (2, 10.0)):
        world.serve(day=day, scale=scale)
        version = publish_calibrated(world.registry, version)
        assert version.traffic is not None
        (record,) = build_model(version, wanted, world.worker).records
        assert (record.outcome, record.reason) == (BuildOutcome.BUILT, "")
        assert record.key.precision is Precision.FP8
        count = f"{version.traffic.num_samples} samples from 2026-11-0{day}"
        assert count in record.key.calibration_digest
        records.append(record)
    engines = {each.digest: each.manifest for each in world.registry.engines()}
    small, large = (engines[each.key.digest()] for each in records)
    assert small.files != large.files


def test_what_is_calibrated_with_is_never_held_out_and_both_are_sealed(world: World) -> None:
    registry = world.registry
    world.serve(day=1, scale=1.0)
    version = publish_calibrated(registry, world.version)
    assert version.traffic is not None
    held_out = version.model_copy(update={"calibration": version.traffic.held_out})
    sides = [
        {row["x"].tobytes() for row in registry.calibration_rows(each)}
        for each in (version, held_out)
    ]
    counts = (version.traffic.num_samples, version.traffic.num_held_out)
    assert counts == (len(sides[0]), len(sides[1]))
    assert sum(counts) == 200
    assert counts[1] > 20
    assert not sides[0] & sides[1]
    assert publish_calibrated(registry, world.version).calibration == version.calibration
    without_key = Registry(
        open_store(world.worker.settings.store_url), world.worker.settings.cache_dir
    )
    with pytest.raises(StoreError, match="is encrypted, and no key is given"):
        without_key.calibration_rows(version)


def test_a_controller_calibrates_first_and_then_asks_or_does_as_the_recipe_says(
    world: World,
) -> None:
    registry = world.registry
    seconds = iter(range(0, 10**6, 1000))
    watch = TrafficWatch(registry, lambda: next(seconds))

    def look() -> list[str]:
        return [event.why for event in watch.look([registry.model_version("m")])]

    world.serve(day=1, scale=0.01, num=63)
    with pytest.raises(InvalidRequestError, match="63 different samples, 64 wanted"):
        publish_calibrated(registry, world.version)
    assert look() == []
    world.serve(day=2, scale=0.01)
    assert look() == []
    assert registry.model_version("m").version == 2
    world.serve(day=3, scale=1.0)
    (why,) = look()
    assert why.endswith("at most 0.2 wanted; calibrate it anew: smelt samples calibrate m")
    assert look() == []  # nothing is new
    version = registry.model_version("m")
    for hours in (25, 24):
        asked = ASKED | {"calibration": {"traffic": {"rebuild": True, "rebuild_after_h": hours}}}
        version = registry.add_changed_version(version, {"recipe": Recipe.model_validate(asked)})
        words = look()
        asked_for = ": smelt samples calibrate m, or wait for 2026-11-04T01:00:00.000+00:00"
        assert [why.endswith(asked_for) for why in words] == [True] * (hours == 25)
    assert registry.model_version("m").version == 5
    assert not traffic_state(registry, registry.model_version("m")).is_due
