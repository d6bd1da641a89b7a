"""Rows of traffic: their file, their encryption, their windows in a store, and their drift."""

import hashlib
import os
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from services.contracts.errors import InvalidRequestError, StoreError
from services.contracts.kserve.byte_strings import STRING_DTYPE
from services.contracts.model.sampling_recipe import Sampling
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import SampleWindow
from services.contracts.store.object_store import open_store
from services.contracts.traffic.drift import drifts, features
from services.contracts.traffic.sample_cipher import SampleCipher, opened_samples
from services.contracts.traffic.sampled_rows import (
    SampledRow,
    bytes_from_arrays,
    bytes_from_rows,
    rows_from_bytes,
)
from tests.unit.services.replica.models import text_model

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def ids_rows(lengths: list[int], first: int = 0) -> list[SampledRow]:
    """A row of ids of each length."""
    return [SampledRow("b", {"ids": np.arange(first, first + each)}) for each in lengths]


def key_file(path: Path, digit: str = "a") -> Path:
    path.write_text(digit * 64 + "\n")
    return path


def test_rows_of_any_shape_and_type_come_back() -> None:
    words = np.array(["Grüße\0", ""], STRING_DTYPE)
    rows = [
        SampledRow("a", {"x": np.ones((2, 3), np.float32), "s": words}, {"secret": "12"}),
        SampledRow("b", {"x": np.zeros((1, 3), np.float32), "s": words[:1]}, {"secret": "34"}),
        SampledRow("b", {"x": np.zeros((0, 3), np.float32), "s": words[:0]}, {"secret": "12"}),
    ]
    found = rows_from_bytes(bytes_from_rows(rows))
    assert [(row.bucket, row.hashes) for row in found] == [(row.bucket, row.hashes) for row in rows]
    for row, back in zip(rows, found, strict=True):
        for name, array in row.arrays.items():
            np.testing.assert_array_equal(back.arrays[name], array)
            assert back.arrays[name].dtype == array.dtype
    bf16 = [SampledRow("a", {"x": np.array([1.5, -2], ml_dtypes.bfloat16)})]
    assert rows_from_bytes(bytes_from_rows(bf16))[0].arrays["x"].tolist() == [1.5, -2]


def test_one_long_string_does_not_make_the_others_as_long() -> None:
    words = np.array(["x" * 1000] + [""] * 10_000, STRING_DTYPE)
    tracemalloc.start()
    data = bytes_from_rows([SampledRow("b", {"s": words})])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    assert rows_from_bytes(data)[0].arrays["s"].tolist() == words.tolist()


def test_what_is_sealed_opens_with_its_key_alone(tmp_path: Path) -> None:
    cipher = SampleCipher(key_file(tmp_path / "a.key"))
    other = SampleCipher(key_file(tmp_path / "b.key", "b"))
    sealed = cipher.sealed(b"what a client sent")
    assert b"client" not in sealed
    assert sealed == cipher.sealed(b"what a client sent") != other.sealed(b"what a client sent")
    assert opened_samples(sealed, cipher, "x") == b"what a client sent"
    assert opened_samples(b"plain", None, "x") == b"plain"
    for key, data in ((other, sealed), (cipher, sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(StoreError, match="x cannot be opened: it was sealed with another key"):
            opened_samples(data, key, "x")
    with pytest.raises(StoreError, match="x is encrypted, and no key is given: .*SMELT_SAMPLE_KEY"):
        opened_samples(sealed, None, "x")
    (tmp_path / "short").write_text("abcd")
    with pytest.raises(InvalidRequestError, match="SMELT_SAMPLE_KEY .*: found 2 bytes; "):
        SampleCipher(tmp_path / "short")
    with pytest.raises(InvalidRequestError, match="gone: found No such file or directory; expec"):
        SampleCipher(tmp_path / "gone")


@pytest.mark.parametrize("has_key", [False, True])
def test_windows_are_bounded_by_age_number_and_size(tmp_path: Path, has_key: bool) -> None:
    key = key_file(tmp_path / "key") if has_key else None
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache", key)

    def write(model: str, hours: float) -> SampleWindow:
        end = NOW - timedelta(hours=hours)
        rows = ids_rows([3] * 10, first=int(hours))
        window = registry.add_sample_window(model, 1, (end, end), rows, {"b": 70})
        written = (datetime.now(UTC) - timedelta(hours=hours)).timestamp()
        for file in (tmp_path / "store" / "samples" / model).glob(f"{end:%Y%m%dT%H%M%S}*"):
            os.utime(file, (written, written))
        return window

    windows = [write("m", hours) for hours in (3, 2, 1)]
    write("other", 9)
    assert list(registry.sample_windows("m").values()) == windows
    assert (windows[0].num_samples, bool(windows[0].key_id)) == (10, has_key)
    rows = registry.sampled_rows(registry.sample_windows("m"))
    assert [row.arrays["ids"][0] for row in rows[::10]] == [3, 2, 1]
    assert {row.weight for row in rows} == {7.0}

    def left(sampling: Sampling) -> list[SampleWindow]:
        registry.delete_beyond_bounds("m", sampling)
        return list(registry.sample_windows("m").values())

    assert left(Sampling()) == windows
    assert left(Sampling(max_age_h=2.5)) == windows[1:]
    assert left(Sampling(max_samples=19)) == windows[2:]
    assert left(Sampling(max_mib=(windows[2].num_bytes - 1) / 2**20)) == []
    assert len(registry.sample_windows()) == 1
    assert len(list((tmp_path / "store" / "samples" / "m").glob("*"))) == 0


def test_rows_that_were_changed_are_refused(tmp_path: Path) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    registry.add_sample_window("m", 1, (NOW, NOW), ids_rows([3]), {"b": 1})
    (file,) = (tmp_path / "store" / "samples" / "m").glob("*.npz")
    file.write_bytes(bytes_from_rows(ids_rows([4])))
    with pytest.raises(StoreError, match="is not what its window names"):
        registry.sampled_rows(registry.sample_windows("m"))


@pytest.mark.parametrize(
    ("counts", "data"),
    [
        ({"kept": {"b": 0}}, None),
        ({"kept": {"other": 1}, "seen": {"other": 1}}, None),
        ({"seen": {}}, None),
        ({"seen": {"b": 0}}, None),
        ({}, b""),
        ({}, b"PK\x03\x04junk"),
        ({}, bytes_from_arrays({"values ids": np.arange(3)})),
    ],
)
def test_rows_that_their_window_does_not_count_are_refused(
    tmp_path: Path, counts: dict[str, dict[str, int]], data: bytes | None
) -> None:
    registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
    window = registry.add_sample_window("m", 1, (NOW, NOW), ids_rows([3]), {"b": 1})
    folder = tmp_path / "store" / "samples" / "m"
    if data is not None:
        next(folder.glob("*.npz")).write_bytes(data)
        window = window.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
    forged = window.model_copy(update=counts)
    next(folder.glob("*.json")).write_bytes(forged.canonical_json())
    with pytest.raises(StoreError, match="does not count its rows, or has none: delete it"):
        registry.sampled_rows(registry.sample_windows("m"))


def masked(lengths: list[int], largest: int, scale: int = 1) -> list[dict[str, np.ndarray]]:
    """Rows of ids, padded to one length."""
    valid = [np.arange(largest) < length for length in lengths]
    return [{"ids": np.arange(largest) * scale * v, "mask": v.astype(np.int64)} for v in valid]


def test_drift_is_beyond_its_noise_where_lengths_move_and_not_where_padding_does() -> None:
    random = np.random.default_rng(1)
    short = random.integers(1, 20, 300).tolist()
    again = random.integers(1, 20, 200).tolist()
    long = random.integers(15, 40, 200).tolist()
    model = text_model()
    before = features(masked(short, 64), model)
    same = {each.what: each for each in drifts(before, features(masked(again, 20), model))}
    moved = {each.what: each for each in drifts(before, features(masked(long, 40), model))}
    assert sorted(same) == ["length sequence", "values ids"]
    assert all(each.distance < 1.5 * each.noise < 0.3 for each in same.values())
    assert moved["length sequence"].distance > 0.7 > 5 * moved["length sequence"].noise
    larger = dict(zip(same, drifts(before, features(masked(again, 20, 9), model)), strict=True))
    assert larger["length sequence"].distance == same["length sequence"].distance
    assert larger["values ids"].distance > 0.5
