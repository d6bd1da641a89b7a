"""What a factory must return, and the faults that are named before an export starts."""

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler_worker.master.pytorch_source import DimLimits, PyTorchModel, load_factory
from compiler_worker.master.source import TorchFactory
from services.contracts.errors import InvalidModelError


def model(**changes: Any) -> PyTorchModel:
    fit = PyTorchModel(
        module=torch.nn.Identity(),
        example_inputs={"a": torch.zeros(2, 3), "b": torch.zeros(2, 5)},
        dynamic_dims={"a": {0: "batch", 1: "width"}, "b": {0: "batch"}},
        dim_limits={"batch": DimLimits(min=1, max=8), "width": DimLimits(min=1, max=8)},
        output_names=("y",),
    )
    return replace(fit, **changes)


def test_sizes_of_named_dims() -> None:
    assert model().traced_sizes() == {"batch": 2, "width": 3}


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "expected"),
    [
        ((1, 3), (1, 5), "'batch' is 1 in example_inputs, a size above 1 within 1..8 wanted"),
        ((0, 3), (0, 5), "'batch' is 0 in example_inputs"),
        ((9, 3), (9, 5), "'batch' is 9 in example_inputs"),
        ((3, 3), (3, 5), "dimensions 'batch' and 'width' are both 3"),
        ((2, 3), (4, 5), "'batch' is 2 and, at axis 0 of input 'b', 4"),
    ],
)
def test_unfit_sizes(shape_a: tuple[int, int], shape_b: tuple[int, int], expected: str) -> None:
    examples = {"a": torch.zeros(shape_a), "b": torch.zeros(shape_b)}
    with pytest.raises(InvalidModelError, match=expected):
        model(example_inputs=examples).traced_sizes()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dynamic_dims": {"c": {0: "batch"}}}, "axis 0 of input 'c'"),
        ({"dynamic_dims": {"a": {2: "batch"}}}, "axis 2 of input 'a'"),
        ({"dim_limits": {"batch": DimLimits(min=1, max=8)}}, "'width' has no entry in dim_limits"),
    ],
)
def test_unknown_names(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidModelError, match=expected):
        model(**changes).traced_sizes()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def make(): return 3", "returned int, a PyTorchModel wanted"),
        ("def make(): raise OSError('no disk')", r"failed: OSError\('no disk'\)"),
        ("def other(): pass", "cannot be imported"),
        ("import module_that_is_not_there", "No module named 'module_that_is_not_there'"),
    ],
)
def test_broken_factories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    name = f"broken_factory_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(body))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidModelError, match=expected):
        load_factory(TorchFactory(module=name, name="make"))
