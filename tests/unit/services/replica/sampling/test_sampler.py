"""What a replica samples: each row as likely, of each bucket, bounded; and no request fails."""

import os
import tracemalloc
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.contracts.errors import StoreError
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.contracts.traffic.sampled_rows import SampledRow
from services.replica.request.infer_call import InferCall
from services.replica.sampling.reservoir import Reservoir
from services.replica.sampling.sampler import Sampler
from services.telemetry.catalog import REPLICA_METRICS
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.unit.services.replica.models import make_model, text_model

SHORT, LONG = 4, 16


def test_every_row_of_a_stream_is_as_likely_to_be_kept() -> None:
    counts = Counter[str]()
    for seed in range(2000):
        reservoir = Reservoir("b", 5, Random(seed))
        for number in range(40):
            reservoir.seen += 1
            while reservoir.next_at < reservoir.seen:
                reservoir.take(SampledRow(str(number), {}))
        assert len(reservoir.kept) == 5
        counts.update(row.bucket for row in reservoir.kept)
    # Each is kept 250 times of 2000, give or take four standard deviations of 15.
    assert len(counts) == 40
    assert all(190 < count < 310 for count in counts.values())


class World:
    """A sampler of the text model, with two buckets, in a store of its own."""

    def __init__(self, folder: Path, sampling: Sampling) -> None:
        self.registry = Registry(open_store(str(folder / "store")), folder / "cache")
        model = text_model(max_sequence=LONG)
        batch = model.buckets[0].dims["batch"]
        buckets = tuple(
            Bucket(dims={"batch": batch, "sequence": DimRange(min=1, opt=1, max=each)})
            for each in (SHORT, LONG)
        )
        recipe = model.recipe.model_copy(update={"buckets": buckets, "sampling": sampling})
        self.model = self.registry.add_model_version(
            name="m", master=model.master, recipe=recipe, source="", source_fingerprint=""
        )
        self.now = datetime(2026, 11, 27, tzinfo=UTC)
        self.metrics = CollectorRegistry()
        recorder = PrometheusRecorder(REPLICA_METRICS, self.metrics)
        self.folder = folder / "store" / "samples" / "m"
        self.sampler = Sampler(
            self.model, sampling, self.registry, recorder, random=Random(0), clock=lambda: self.now
        )

    def send(self, rows: int, length: int, first: int = 0) -> InferCall:
        ids = np.arange(first, first + rows * length).reshape(rows, length)
        sizes = {"batch": rows, "sequence": length}
        inputs = {"ids": ids, "mask": np.ones_like(ids)}
        call = InferCall(inputs=inputs, sizes=sizes, outputs=())
        self.sampler.offer([call])
        return call

    def write(self, age: timedelta = timedelta()) -> None:
        """A window of one row by another replica, which the store has had for so long."""
        before = set(self.folder.glob("*"))
        rows = [SampledRow("b", {})]
        self.registry.add_sample_window("m", 1, (self.now, self.now), rows, {"b": 1})
        written = (datetime.now(UTC) - age).timestamp()
        for file in {*self.folder.glob("*")} - before:
            os.utime(file, (written, written))

    def rows(self) -> list[SampledRow]:
        return self.registry.sampled_rows(self.registry.sample_windows("m"))

    def count(self, outcome: str) -> float:
        self.sampler.turn_over()
        labels = {"model": "m", "version": "1", "outcome": outcome}
        return self.metrics.get_sample_value("smelt_samples_total", labels) or 0.0


async def test_rows_are_kept_of_each_bucket_alike_and_weighted_back(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(rate_per_s=1, window_s=20))
    for number in range(500):
        world.send(rows=3, length=SHORT, first=number)
    for number in range(20):
        world.send(rows=1, length=LONG, first=number)
    await world.sampler.close()
    (window,) = world.registry.sample_windows("m").values()
    labels = [bucket.label for bucket in world.model.buckets]
    assert (window.seen, window.kept) == (
        dict(zip(labels, (1500, 20), strict=True)),
        dict.fromkeys(labels, 10),
    )
    rows = world.rows()
    assert sum(row.weight for row in rows) == 1520
    for row in rows:
        ids = row.arrays["ids"]
        assert ids.shape == (SHORT if row.bucket == labels[0] else LONG,)
        np.testing.assert_array_equal(ids, np.arange(ids[0], ids[0] + len(ids)))
    assert world.count("written") == 20


async def test_a_window_ends_by_time_and_the_next_one_begins_empty(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(rate_per_s=1, window_s=20))
    world.send(2, SHORT)
    world.sampler.turn_over()
    world.now += timedelta(seconds=20)
    world.sampler.turn_over()
    world.send(1, SHORT)
    world.now += timedelta(seconds=1)
    await world.sampler.close()
    assert [w.num_samples for w in world.registry.sample_windows("m").values()] == [2, 1]


async def test_a_window_ends_where_the_clock_is_set_back(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(window_s=20))
    world.send(1, SHORT)
    world.now -= timedelta(days=1)
    world.sampler.turn_over()
    world.send(2, SHORT)
    await world.sampler.close()
    assert sorted(w.num_samples for w in world.registry.sample_windows("m").values()) == [1, 2]


@pytest.mark.parametrize("hashed", [(), ("text",)])
async def test_rows_of_one_string_are_sampled(tmp_path: Path, hashed: tuple[str, ...]) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    text = TensorSpec(name="text", datatype="BYTES", shape=("batch",))
    sampling = Sampling(hash=hashed)
    model = registry.add_model_version(
        name="m",
        master=make_model((text,), (text,)).master,
        recipe=Recipe(sampling=sampling),
        source="",
        source_fingerprint="",
    )
    recorder = PrometheusRecorder(REPLICA_METRICS, CollectorRegistry())
    sampler = Sampler(model, sampling, registry, recorder)
    texts = np.array(["one", "two and more", "one"], dtype=STRING_DTYPE)
    sampler.offer([InferCall(inputs={"text": texts}, sizes={"batch": 3}, outputs=())])
    await sampler.close()
    rows = registry.sampled_rows(registry.sample_windows("m"))
    if hashed:
        assert rows[0].hashes == rows[2].hashes != rows[1].hashes
    else:
        assert [row.arrays["text"].item() for row in rows] == texts.tolist()


async def test_inputs_are_dropped_and_hashed_and_rows_are_copies(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(drop=("mask",), hash=("ids",)))
    calls = [world.send(1, SHORT), world.send(1, SHORT), world.send(1, SHORT, first=1)]
    assert all(not call.inputs["ids"].flags["OWNDATA"] for call in calls)
    await world.sampler.close()
    rows = world.rows()
    assert [dict(row.arrays) for row in rows] == [{}, {}, {}]
    assert len({row.hashes["ids"] for row in rows}) == 2
    whole = World(tmp_path / "whole", Sampling())
    call = whole.send(1, SHORT)
    call.inputs["ids"][:] = -1  # as memory that a gateway lent is used again
    await whole.sampler.close()
    assert whole.rows()[0].arrays["ids"].tolist() == [0, 1, 2, 3]


async def test_what_fails_is_counted_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, Sampling(rate_per_s=1, window_s=20, max_mib=20 * 8 * 8 / 2**20))
    world.send(1, LONG)  # too large
    call = InferCall(inputs={}, sizes={"batch": 1, "sequence": SHORT}, outputs=())
    world.sampler.offer([call])
    assert world.count("lost") == 2

    def fail(*_: object) -> None:
        raise StoreError("away")

    monkeypatch.setattr(Registry, "add_sample_window", fail)
    world.send(3, SHORT)
    await world.sampler.close()
    assert world.count("lost") == 5
    assert world.rows() == []


async def test_a_row_that_is_too_large_is_not_copied(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(max_mib=1))
    call = world.send(1, 1_000_000)
    tracemalloc.start()
    world.sampler.offer([call])
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    await world.sampler.close()
    assert world.count("lost") == 2


async def test_what_is_too_old_goes_from_a_store_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, Sampling(max_age_h=1))
    world.write(age=timedelta(hours=2))

    def fail(*_: object) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(world.registry, "add_sample_window", fail)
    world.send(1, SHORT)
    await world.sampler.close()
    assert world.registry.sample_keys("m") == []


async def test_a_window_that_cannot_be_read_is_passed_over_until_it_is_too_old(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Sampling(window_s=20, max_age_h=1))
    for minutes in (90, 30):
        world.write(age=timedelta(minutes=minutes))
    for file in world.folder.glob("*.json"):
        written = file.stat().st_mtime
        file.write_text('{"model":"m","ver')
        os.utime(file, (written, written))
    world.send(2, SHORT)
    await world.sampler.close()
    assert world.count("written") == 2
    assert [each.num_samples for each in world.registry.sample_windows("m").values()] == [2]
    assert len(list(world.folder.glob("*"))) == 4, "the older one is gone, its rows too"


async def test_nothing_is_written_of_a_version_that_was_removed(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling())
    world.send(1, SHORT)
    world.registry.remove_model("m")
    await world.sampler.close()
    assert world.registry.sample_windows() == {}
    assert (world.count("lost"), world.count("written")) == (1, 0)


async def test_what_is_too_old_goes_while_no_request_comes(tmp_path: Path) -> None:
    world = World(tmp_path, Sampling(window_s=20, max_age_h=1))
    for minutes in (90, 30):
        world.write(age=timedelta(minutes=minutes))
        world.now += timedelta(minutes=1)
    await world.sampler.close()
    (window,) = world.registry.sample_windows("m").values()
    assert window.ends_at == "2026-11-27T00:01:00.000+00:00"


@pytest.mark.parametrize("days_ahead", [400, -400])
async def test_a_clock_that_is_wrong_deletes_nothing_of_others_and_keeps_nothing_longer(
    tmp_path: Path, days_ahead: int
) -> None:
    world = World(tmp_path, Sampling(max_age_h=1, max_samples=3))
    right = world.now
    for minutes in (50, 20, 10):
        world.write(age=timedelta(minutes=minutes))
    world.now += timedelta(days=days_ahead)
    world.write(age=timedelta(minutes=90))
    world.sampler.turn_over()
    world.send(1, SHORT)
    await world.sampler.close()
    ends = [each.ends_at for each in world.registry.sample_windows("m").values()]
    expected = [right, right, world.now]
    assert ends == [each.isoformat(timespec="milliseconds") for each in sorted(expected)]


async def test_rows_that_were_written_are_not_lost_where_nothing_may_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, Sampling(max_age_h=1))
    world.write(age=timedelta(hours=2))
    world.now += timedelta(hours=2)

    def refuse(*_: object) -> None:
        raise StoreError("not allowed")

    monkeypatch.setattr(ObstoreArtifactStore, "delete", refuse)
    world.send(3, SHORT)
    await world.sampler.close()
    assert (world.count("written"), world.count("lost")) == (3, 0)


async def test_rows_whose_writer_was_killed_go_once_they_are_older_than_a_window(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, Sampling(window_s=1200))
    for minutes in (30, 10):
        world.write(age=timedelta(minutes=minutes))
        world.now += timedelta(seconds=1)
    for file in world.folder.glob("*.json"):
        file.unlink()
    young = max(world.folder.glob("*.npz"))
    world.send(1, SHORT)
    await world.sampler.close()
    (window,) = world.registry.sample_windows("m")
    own = young.with_name(Path(window).name)
    assert set(world.folder.glob("*")) == {young, own, own.with_suffix(".npz")}
