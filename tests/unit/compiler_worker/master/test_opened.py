"""The entry: files and factories become masters with their recipe and samples."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler_worker.master.opened import open_master
from compiler_worker.master.source import OnnxFile, TorchFactory
from services.contracts.errors import InvalidModelError, InvalidRecipeError

FACTORY = """
    import numpy as np
    import torch
    from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel
    from services.contracts.model.recipe import Recipe

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4,), 2.0))

        def forward(self, x):
            return x * self.weight

    def make(samples={samples}):
        return PyTorchModel(
            module=Scale(),
            example_inputs={{"x": torch.ones(3, 4)}},
            dynamic_dims={{"x": {{0: "rows"}}}},
            dim_limits={{"rows": DimLimits(min=1, max=8)}},
            output_names=("y",),
            recipe=Recipe(num_replicas=3),
            samples=samples,
        )
"""


def write_factory(tmp_path: Path, name: str, samples: str) -> TorchFactory:
    text = textwrap.dedent(FACTORY).format(samples=samples)
    (tmp_path / f"{name}.py").write_text(text)
    return TorchFactory(module=name, name="make")


def test_a_file(linear: onnx.ModelProto, save: Callable[..., Path], tmp_path: Path) -> None:
    messages: list[str] = []
    path = save(linear)
    opened = open_master(OnnxFile(path=path), tmp_path / "target", messages.append)
    assert (opened.recipe, opened.samples, opened.opset) == (None, None, 20)
    assert messages == [f"opening {path}"]


def test_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = write_factory(tmp_path, "scale_factory", "{'x': np.ones((6, 4), np.float32)}")
    messages: list[str] = []
    opened = open_master(source, tmp_path / "target", messages.append)
    assert opened.inputs[0].shape == ("rows", 4)
    assert opened.recipe is not None
    assert opened.recipe.num_replicas == 3
    assert opened.samples is not None
    assert np.load(opened.samples)["x"].shape == (6, 4)
    assert messages == ["opening scale_factory:make", "exporting at opset 23"]
    again = open_master(source, tmp_path / "again", messages.append)
    assert again.digest == opened.digest
    assert again.samples is not None
    assert again.samples.read_bytes() == opened.samples.read_bytes()


def test_dimensions_are_checked_before_what_takes_long(
    linear: onnx.ModelProto,
    save: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    factory = write_factory(tmp_path, "checked_factory", "None")
    seen: list[list[str]] = []

    def refuse(dims: Sequence[str]) -> None:
        seen.append(list(dims))
        raise InvalidRecipeError("recipe: bucket b8")

    messages: list[str] = []
    for source in (factory, OnnxFile(path=save(linear))):
        with pytest.raises(InvalidRecipeError):
            open_master(source, tmp_path / "target", messages.append, refuse)
    assert seen == [["rows"], ["N"]]
    assert not any("exporting" in message for message in messages)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ("{'z': np.ones((6, 4), np.float32)}", r"samples for \['z'\] found"),
        ("{'x': np.ones((6, 4))}", "expected datatype FP32, got FP64"),
        ("{'x': np.ones((6, 5), np.float32)}", r"expected \[-1, 4\], got \[6, 5\]"),
    ],
)
def test_unfit_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: str, expected: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = write_factory(tmp_path, f"unfit_{abs(hash(samples))}", samples)
    with pytest.raises(InvalidModelError, match=expected):
        open_master(source, tmp_path / "target", lambda _: None)
