"""Calibration sets: what is read, what is refused, and that equal samples are equal bytes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler_worker.precision.calibration import (
    MIN_SAMPLES,
    feeds,
    read_calibration,
    write_calibration,
)
from services.contracts.errors import InvalidRecipeError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRecipe, Recipe
from services.contracts.model.value_limits import limits_of

INPUTS = (
    TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence")),
    TensorSpec(name="image", datatype="FP32", shape=("batch", 3, 4)),
)
MASTER = MasterRecord(
    digest="d" * 64, files={}, inputs=INPUTS, outputs=(), opset=20, num_parameters=0
)
LIMITS = limits_of(MASTER, Recipe(inputs={"ids": InputRecipe(min=0, max=8)}))


def good(num: int = MIN_SAMPLES) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(0, 9, (num, 5)),
        "image": rng.standard_normal((num, 3, 4)).astype(np.float32),
    }


def save(path: Path, arrays: dict[str, Array]) -> Path:
    np.savez(path, allow_pickle=False, **arrays)
    return path


def test_arrays_come_by_input_name(tmp_path: Path) -> None:
    found = read_calibration(save(tmp_path / "c.npz", good()), INPUTS, LIMITS)
    for name, array in good().items():
        np.testing.assert_array_equal(found[name], array)


def without(name: str) -> dict[str, Array]:
    return {key: array for key, array in good().items() if key != name}


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        (without("ids"), "no column for input 'ids'; found .*'image'"),
        (without("ids") | {"idz": good()["ids"]}, "no column for input 'ids', did you mean 'idz'"),
        (good() | {"labels": np.zeros(MIN_SAMPLES)}, "column 'labels' is no input of the model"),
        (good() | {"ids": good()["ids"].astype(np.int32)}, "'ids': INT32 .* found, INT64"),
        (good() | {"image": good()["image"][:, :2]}, r"'image': FP32 \[16, 2, 4\] found, .*3, 4"),
        (good() | {"image": good()["image"][0]}, r"'image': FP32 \[3, 4\] found"),
        (good() | {"ids": good(17)["ids"]}, "columns of one length"),
        (good(MIN_SAMPLES - 1), "15 samples are too few, at least 16 wanted"),
        (good() | {"ids": good()["ids"] + 1}, "'ids' holds 9 at .*, values from 0 to 8 are"),
        (good() | {"ids": good()["ids"] - 1}, "'ids' holds -1 at .*, values from 0 to 8 are"),
        (good() | {"image": good()["image"] * np.float32("inf")}, "'image' .*not finite"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, arrays: dict[str, Array], told: str
) -> None:
    path = save(tmp_path / "c.npz", arrays)
    with pytest.raises(InvalidRecipeError, match=rf"recipe: calibration\.path .*{told}"):
        read_calibration(path, INPUTS, LIMITS)


def test_a_missing_file_is_refused_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecipeError, match=r"none\.npz: no such file; .*recipe's own folder"):
        read_calibration(tmp_path / "none.npz", INPUTS)


@pytest.mark.parametrize("name", ["c.csv", "c"])
def test_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("ids,image")
    with pytest.raises(InvalidRecipeError, match=r"expected a file \.npz or \.parquet"):
        read_calibration(tmp_path / name, INPUTS)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.npz").write_bytes(b"not a zip")
    with pytest.raises(InvalidRecipeError, match=r"c\.npz: .*numpy\.savez"):
        read_calibration(tmp_path / "c.npz", INPUTS)


def test_equal_samples_are_kept_as_equal_bytes(tmp_path: Path) -> None:
    arrays = good()
    turned = dict(reversed(arrays.items()))
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for folder in folders:
        folder.mkdir()
    first, same, other = (
        write_calibration(each, folder).read_bytes()
        for each, folder in zip((arrays, turned, good(17)), folders, strict=True)
    )
    assert first == same != other


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    found = read_calibration(write_calibration(good(), tmp_path), INPUTS)
    np.testing.assert_array_equal(found["image"], good()["image"])


def test_a_feed_is_one_sample_where_the_batch_is_dynamic() -> None:
    found = feeds(good(), INPUTS)
    assert len(found) == MIN_SAMPLES
    assert {name: array.shape for name, array in found[0].items()} == {
        "ids": (1, 5),
        "image": (1, 3, 4),
    }
    np.testing.assert_array_equal(found[3]["ids"][0], good()["ids"][3])


def test_a_feed_fills_a_fixed_batch() -> None:
    spec = TensorSpec(name="x", datatype="FP32", shape=(4, 2))
    found = feeds({"x": np.arange(36, dtype=np.float32).reshape(18, 2)}, (spec,))
    assert [feed["x"].shape for feed in found] == [(4, 2)] * 4
    assert found[1]["x"][0, 0] == 8


def test_a_row_is_the_whole_input_where_nothing_counts_samples(tmp_path: Path) -> None:
    spec = TensorSpec(name="audio", datatype="FP32", shape=("time", 2))
    array = np.ones((20, 7, 2), np.float32)
    found = feeds(read_calibration(save(tmp_path / "c.npz", {"audio": array}), (spec,)), (spec,))
    assert [feed["audio"].shape for feed in found] == [(7, 2)] * 20


class TestParquet:
    """The same through pyarrow, where it is installed."""

    @pytest.fixture
    def arrow(self) -> Any:
        pytest.importorskip("pyarrow.parquet")
        return pytest.importorskip("pyarrow")

    def write(self, arrow: Any, path: Path, columns: dict[str, Any]) -> Path:
        arrow.parquet.write_table(arrow.table(columns), path)
        return path

    def test_nested_and_flat_rows_are_the_same_samples(self, arrow: Any, tmp_path: Path) -> None:
        arrays = good()
        image = arrow.array(arrays["image"].tolist(), arrow.list_(arrow.list_(arrow.float32())))
        flat = arrow.array(list(arrays["image"].reshape(MIN_SAMPLES, -1)))
        for number, column in enumerate((image, flat)):
            path = tmp_path / f"{number}.parquet"
            self.write(arrow, path, {"ids": list(arrays["ids"]), "image": column})
            found = read_calibration(path, INPUTS, LIMITS)
            assert {name: array.dtype for name, array in found.items()} == {
                name: array.dtype for name, array in arrays.items()
            }
            np.testing.assert_array_equal(found["image"], arrays["image"])
            np.testing.assert_array_equal(found["ids"], arrays["ids"])

    @pytest.mark.parametrize(
        ("ids", "told"),
        [
            ([[1, 2]] * 15 + [[1]], "lists of lengths 1, 2 in column 'ids': pad"),
            ([[1, 2]] * 15 + [[1, None]], "column 'ids' has empty cells"),
            (["a"] * 16, "'ids': object"),
        ],
    )
    def test_a_column_that_is_no_array_is_refused(
        self, arrow: Any, tmp_path: Path, ids: list[Any], told: str
    ) -> None:
        columns = {"ids": ids, "image": list(good()["image"].reshape(MIN_SAMPLES, -1))}
        path = self.write(arrow, tmp_path / "c.parquet", columns)
        with pytest.raises(InvalidRecipeError, match=told):
            read_calibration(path, INPUTS)

    def test_a_file_that_is_no_parquet_is_refused(self, arrow: Any, tmp_path: Path) -> None:
        (tmp_path / "c.parquet").write_bytes(b"nothing")
        with pytest.raises(InvalidRecipeError, match="not a parquet file"):
            read_calibration(tmp_path / "c.parquet", INPUTS)


def test_without_pyarrow_a_parquet_file_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidRecipeError, match=r"needs pyarrow .*numpy\.savez"):
        read_calibration(tmp_path / "c.parquet", INPUTS)
