"""What a version is calibrated with: rows of requests that it could have been sent alone."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError, StoreError
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.traffic.recalibration import publish_calibrated, traffic_state
from services.contracts.traffic.sampled_rows import SampledRow
from services.controller.build.traffic_watch import TrafficWatch

NOW = datetime(2026, 11, 27, tzinfo=UTC)
IDS = TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence"))
MASK = TensorSpec(name="mask", datatype="INT64", shape=("batch", "sequence"))
BUCKETS = [
    {"dims": {"batch": {"min": 1, "opt": 1, "max": 8}, "sequence": {"min": 1, "opt": 8, "max": 64}}}
]
ASKED = {"sampling": {}, "calibration": "traffic", "buckets": BUCKETS}
MASKED = ASKED | {"inputs": {"mask": {"role": "mask"}}}


class World:
    """A registry with a model whose requests are sampled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(str(folder / "store"))
        self.registry = Registry(self.store, folder / "cache")
        self._num_windows = 0

    def publish(
        self,
        asked: dict[str, object],
        *inputs: TensorSpec,
        digest: str = "d",
        tokenizer: str = "",
        name: str = "m",
    ) -> ModelVersion:
        master = MasterRecord(
            digest=digest * 64,
            files={},
            inputs=inputs,
            outputs=inputs[:1],
            opset=23,
            num_parameters=0,
        )
        file = self.folder / "tokenizer.json"
        file.write_text(tokenizer)
        return self.registry.add_model_version(
            name=name,
            master=master,
            recipe=Recipe.model_validate(asked),
            source="s",
            source_fingerprint=digest,
            tokenizer=file if tokenizer else None,
        )

    def serve(self, version: ModelVersion, rows: Sequence[dict[str, Array]]) -> None:
        """A window of requests, an hour after the last one."""
        self._num_windows += 1
        end = NOW + timedelta(hours=self._num_windows)
        sampled = [SampledRow("b", row) for row in rows]
        span = (end - timedelta(hours=1), end)
        seen = {"b": len(rows)}
        self.registry.add_sample_window(version.name, version.version, span, sampled, seen)


def ids_rows(num: int, length: int = 8, first: int = 0) -> list[dict[str, Array]]:
    """Rows of ids, each another."""
    return [{"ids": np.arange(first + each, first + each + length)} for each in range(num)]


def masked(valid: int, length: int, first: int = 0) -> dict[str, Array]:
    """Ids of which so many are valid, then padding."""
    mask = (np.arange(length) < valid).astype(np.int64)
    return {"ids": np.arange(first, first + length) * mask, "mask": mask}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_of_another_master_or_tokenizer_calibrate_nothing(world: World) -> None:
    old = world.publish(ASKED, IDS, tokenizer="old")
    world.serve(old, ids_rows(100))
    assert traffic_state(world.registry, old).is_due
    exported = world.publish(ASKED, IDS, digest="e", tokenizer="old")
    other_words = world.publish(ASKED, IDS, tokenizer="new")
    for version in (exported, other_words):
        state = traffic_state(world.registry, version)
        assert (state.num_samples, state.is_due) == (0, False)
        left_out = "left out: 1 window of another master or tokenizer"
        assert state.words == f"0 different samples, 64 wanted to calibrate; {left_out}"
        with pytest.raises(InvalidRequestError, match="left out: 1 window"):
            publish_calibrated(world.registry, version)
    # Another recipe: what is sent to it means the same.
    again = world.publish(ASKED | {"batching": {"max_queue": 9}}, IDS, tokenizer="new")
    world.serve(other_words, ids_rows(100))
    assert traffic_state(world.registry, again).is_due


def test_rows_that_the_version_would_refuse_calibrate_nothing(world: World) -> None:
    old = world.publish(MASKED, IDS, MASK)
    lengths = [each % 64 + 1 for each in range(128)]
    rows = [masked(length, 64, first=100 * n) for n, length in enumerate(lengths)]
    world.serve(old, [*rows, masked(65, 70)])
    assert traffic_state(world.registry, old).num_samples == 128
    short = BUCKETS[0]["dims"] | {"sequence": {"min": 4, "opt": 8, "max": 16}}
    narrow = world.publish(MASKED | {"buckets": [{"dims": short}]}, IDS, MASK)
    assert traffic_state(world.registry, narrow).num_samples == 2 * 16
    limited = MASKED | {"inputs": {"mask": {"role": "mask"}, "ids": {"max": 6500}}}
    few = world.publish(limited, IDS, MASK)
    assert traffic_state(world.registry, few).num_samples == 65


def test_rows_that_are_not_finite_calibrate_nothing(world: World) -> None:
    version = world.publish(ASKED, IDS.model_copy(update={"datatype": "FP32"}))
    rows = [{"ids": row["ids"].astype(np.float32)} for row in ids_rows(102)]
    rows[3]["ids"][2] = np.nan
    rows[7]["ids"][0] = -np.inf
    world.serve(version, rows)
    assert traffic_state(world.registry, version).num_samples == 100
    calibrated = publish_calibrated(world.registry, version)
    assert all(np.isfinite(row["ids"]).all() for row in world.registry.calibration_rows(calibrated))


def test_a_version_that_came_meanwhile_is_not_undone(world: World) -> None:
    old = world.publish(ASKED, IDS)
    world.serve(old, ids_rows(100))
    newer = world.publish(ASKED, IDS, digest="e")
    with pytest.raises(
        InvalidRequestError, match="change is of version 1, and the newest is now 2"
    ):
        publish_calibrated(world.registry, old)
    assert world.registry.model_version("m") == newer
    # A controller had the old one in hand: at its next pass it looks at what is there.
    now_s = [0.0]
    watch = TrafficWatch(world.registry, lambda: now_s[0])
    assert watch.look([old]) == []
    assert world.registry.model_version("m") == newer
    world.serve(newer, ids_rows(100))
    now_s[0] = 60.0
    assert watch.look([newer]) == []
    assert world.registry.model_version("m").master == newer.master
    assert world.registry.model_version("m").version == 3
    world.registry.remove_model("m")
    with pytest.raises(InvalidRequestError, match="the newest is now none"):
        world.registry.add_changed_version(newer, {})


def test_samples_that_cannot_be_used_keep_no_other_model_from_being_calibrated(
    world: World,
) -> None:
    broken = world.publish(ASKED, IDS, name="broken")
    other = world.publish(ASKED, IDS)
    world.serve(broken, [{"ids": np.array(["no number"], dtype=STRING_DTYPE)}])
    world.serve(other, ids_rows(100))
    assert TrafficWatch(world.registry, lambda: 0.0).look([broken, other]) == []
    assert world.registry.model_version("m").version == 2


def test_windows_of_a_clock_that_is_ahead_are_no_samples_yet(world: World) -> None:
    version = world.publish(ASKED, IDS)
    world.serve(version, ids_rows(100))
    ahead = datetime.now(UTC) + timedelta(days=400)
    rows = [SampledRow("b", row) for row in ids_rows(100, first=1000)]
    world.registry.add_sample_window("m", 1, (ahead, ahead), rows, {"b": 100})
    assert traffic_state(world.registry, version).num_samples == 100
    assert TrafficWatch(world.registry, lambda: 0.0).look([version]) == []
    calibrated = world.registry.model_version("m")
    assert calibrated.traffic
    assert calibrated.traffic.ends_at == "2026-11-27T01:00:00.000+00:00"
    # All that comes from now on would else be older than what it was calibrated with.
    world.serve(calibrated, ids_rows(50, first=2000))
    assert traffic_state(world.registry, calibrated).num_samples == 50


def test_a_version_that_cannot_be_published_is_tried_ever_later_and_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = world.publish(ASKED, IDS)
    world.serve(version, ids_rows(100))
    now_s = [0.0]
    watch = TrafficWatch(world.registry, lambda: now_s[0])
    tried = []

    def fail(key: str, data: bytes) -> None:
        tried.append(now_s[0])
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "create", fail)
        for now_s[0] in range(0, 6 * 3600, 60):
            assert watch.look([version]) == []
    assert tried[:5] == [0, 60, 180, 420, 900]
    assert max(b - a for a, b in itertools.pairwise(tried)) == 3600
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "m version 1 is not calibrated with traffic: no space left; tried again after pauses"
    )
    now_s[0] += 3600
    assert watch.look([version]) == []
    assert world.registry.model_version("m").version == 2


@pytest.mark.parametrize("is_held_out", [False, True])
def test_samples_that_are_all_for_one_purpose_are_refused(world: World, is_held_out: bool) -> None:
    other = world.publish(ASKED, IDS, name="other")
    world.serve(other, ids_rows(400))
    parted = publish_calibrated(world.registry, other)
    assert parted.traffic is not None
    held_out = {"calibration": parted.traffic.held_out} if is_held_out else {}
    rows = list(world.registry.calibration_rows(parted.model_copy(update=held_out)))
    version = world.publish(ASKED, IDS)
    world.serve(version, rows)
    counts = f"0 are to .* and {len(rows)} to" if is_held_out else f"{len(rows)} are to .* and 0 to"
    expected = f"of {len(rows)} different samples {counts} hold out .*: wait for more samples"
    with pytest.raises(InvalidRequestError, match=expected):
        publish_calibrated(world.registry, version)
    world.serve(version, ids_rows(100, first=1000))
    assert publish_calibrated(world.registry, version).traffic is not None


def test_a_version_that_came_between_look_and_write_is_not_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = world.publish(ASKED, IDS)
    create = world.store.create

    def late(key: str, data: bytes) -> None:
        monkeypatch.setattr(world.store, "create", create)
        world.publish(ASKED, IDS, digest="e")
        create(key, data)

    monkeypatch.setattr(world.store, "create", late)
    recipe = base.recipe.model_copy(update={"sampling": None})
    with pytest.raises(InvalidRequestError, match="the newest is now 2"):
        world.registry.add_changed_version(base, {"recipe": recipe})
    assert world.registry.version_numbers("m") == [1, 2]


def lengths_rows(random: np.random.Generator, num: int) -> list[dict[str, Array]]:
    """Rows of one to four ids."""
    sizes = random.integers(1, 5, num).tolist()
    return [{"ids": random.integers(0, 10**9, size)} for size in sizes]


def test_without_a_mask_rows_of_one_length_calibrate_and_others_are_no_drift(world: World) -> None:
    version = world.publish(ASKED | {"calibration": {"traffic": {"max_drift": 0.5}}}, IDS)
    random = np.random.default_rng(0)
    world.serve(version, lengths_rows(random, 200))
    state = traffic_state(world.registry, version)
    assert state.num_samples < 64
    assert "of other lengths, as no input is a mask to pad by" in state.words
    world.serve(version, lengths_rows(random, 600))
    version = publish_calibrated(world.registry, version)
    assert version.traffic is not None
    rows = world.registry.calibration_rows(version)
    held_out = version.model_copy(update={"calibration": version.traffic.held_out})
    num_held_out = len(world.registry.calibration_rows(held_out))
    assert version.traffic.num_samples == len(rows) > 64
    assert version.traffic.num_held_out == num_held_out > 16
    for _ in range(3):
        world.serve(version, lengths_rows(random, 500))
        state = traffic_state(world.registry, version)
        assert state.num_samples >= 64
        assert {each.what: each.distance for each in state.drifts}["length sequence"] < 1e-9
        assert not state.is_due
    # Another length alone is what is sent now.
    world.serve(version, [{"ids": row["ids"] + 10**6} for row in ids_rows(1500, length=9)])
    assert traffic_state(world.registry, version).is_due


def test_a_row_is_one_sample_however_it_is_padded(world: World) -> None:
    version = world.publish(MASKED, IDS, MASK)
    texts = [(1 + each % 30, 100 * each) for each in range(120)]
    for length in (30, 32, 64):
        world.serve(version, [masked(valid, length, first) for valid, first in texts])
    world.serve(version, [masked(0, 30)])
    state = traffic_state(world.registry, version)
    assert state.num_samples == 120
    version = publish_calibrated(world.registry, version)
    assert version.traffic is not None
    held_out = version.model_copy(update={"calibration": version.traffic.held_out})
    sides = [
        {row["ids"][row["mask"] == 1].tobytes() for row in world.registry.calibration_rows(each)}
        for each in (version, held_out)
    ]
    assert min(map(len, sides)) > 10
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("own", ["", "b"])
def test_a_window_of_another_key_is_left_out_and_counted(world: World, own: str) -> None:
    keys = {digit: world.folder / digit for digit in ("a", "b")}
    for digit, path in keys.items():
        path.write_text(digit * 64)
    version = world.publish(ASKED, IDS)
    world.registry = Registry(world.store, world.folder / "cache", keys["a"])
    world.serve(version, ids_rows(100))
    world.registry = Registry(world.store, world.folder / "cache", keys.get(own))
    state = traffic_state(world.registry, version)
    assert (state.num_samples, state.is_due) == (0, False)
    assert "left out: 1 window sealed with another key than SMELT_SAMPLE_KEY" in state.words
    world.serve(version, ids_rows(70, first=500))
    assert traffic_state(world.registry, version).num_samples == 70
    assert publish_calibrated(world.registry, version).version == 2


@pytest.mark.parametrize("own", ["", "b"])
def test_a_version_is_due_whose_calibration_another_key_sealed(world: World, own: str) -> None:
    keys = {digit: world.folder / digit for digit in ("a", "b")}
    for digit, path in keys.items():
        path.write_text(digit * 64)
    world.registry = Registry(world.store, world.folder / "cache", keys["a"])
    version = world.publish(ASKED, IDS)
    world.serve(version, ids_rows(100))
    version = publish_calibrated(world.registry, version)
    world.registry = Registry(world.store, world.folder / "cache", keys.get(own))
    assert not traffic_state(world.registry, version).is_due
    world.serve(version, ids_rows(100, first=500))
    state = traffic_state(world.registry, version)
    assert state.is_due
    assert "the calibration set of m version 2" in state.words
    assert "100 samples are there to calibrate anew with" in state.words
    anew = publish_calibrated(world.registry, version)
    assert len(world.registry.calibration_rows(anew)) > 50


def test_an_input_of_one_number_a_row_is_stacked(world: World) -> None:
    scale = TensorSpec(name="scale", datatype="FP32", shape=("batch",))
    version = world.publish(ASKED, IDS, scale)
    scales = np.arange(100, dtype=np.float32)
    world.serve(version, [{**row, "scale": scales[n]} for n, row in enumerate(ids_rows(100))])
    rows = world.registry.calibration_rows(publish_calibrated(world.registry, version))
    assert {float(row["scale"] - row["ids"][0]) for row in rows} == {0.0}
