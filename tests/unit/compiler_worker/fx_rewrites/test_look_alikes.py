"""Graphs that differ from what a rewrite is for in one thing: shapes, ranks, what is computed."""

import math

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from tests.unit.compiler_worker.fx_rewrites.rewritten import Case, double

aten = torch.ops.aten
DYNAMIC = {0: Dim("batch", min=1, max=8)}


class Computed(nn.Module):
    """A convolution and a normalisation of which one part comes with the call."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.conv = nn.Conv2d(3, 4, 3)
        for name in ("weight", "bias", "mean", "variance"):
            self.register_buffer(name, double(4).abs() + 0.5)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        parts = {name: getattr(self, name) for name in ("weight", "bias", "mean", "variance")}
        parts[self.part] = given
        mean, variance = parts.pop("mean"), parts.pop("variance")
        return functional.batch_norm(self.conv(x), mean, variance, **parts)


@pytest.mark.parametrize("part", ["weight", "bias", "mean", "variance"])
def test_a_normalisation_by_what_is_computed_stays(part: str) -> None:
    inputs = (double(2, 3, 9, 9), 3 * double(4).abs())
    case = Case(Computed(part).double(), inputs, ["batch_norms"])
    assert case.counts["batch_norms"] == 0
    case.check(*inputs)


def test_a_normalisation_without_scale_and_bias_is_folded() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)).double()
    case = Case(module, (double(2, 3, 9, 9),), ["batch_norms"])
    assert case.counts["batch_norms"] == 1
    case.check(double(2, 3, 9, 9))


class Masked(nn.Module):
    """Attention with a mask of any shape."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.5 + mask, -1) @ v


@pytest.mark.parametrize(
    ("q", "mask", "count"),
    [
        ((2, 2, 3, 4), (5,), 1),
        ((2, 2, 3, 4), (3, 5), 1),
        ((2, 2, 3, 4), (2, 1, 1, 5), 1),
        ((2, 2, 3, 4), (), 0),
        ((2, 2, 1, 4), (1, 1, 3, 5), 0),
        ((1, 2, 3, 4), (3, 1, 1, 5), 0),
        ((2, 1, 3, 4), (2, 6, 3, 5), 0),
    ],
)
def test_a_mask_joins_the_call_unless_it_widens_the_scores(
    q: tuple[int, ...], mask: tuple[int, ...], count: int
) -> None:
    keys = double(*q[:2], 5, 4)
    inputs = (double(*q), keys, keys + 1, double(*mask or (1,)).reshape(mask))
    case = Case(Masked(), inputs, ["attention"])
    assert case.counts["attention"] == count
    case.check(*inputs)


class Deep(nn.Module):
    """Formulas whose numbers have more axes than their input, and add them to the result."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        numbers = {"factor": 0.5, "one": 1.0, "root": math.sqrt(2), "epsilon": 1e-3}
        for name, value in numbers.items():
            shape = (1, 1, 1, 1) if name == form else ()
            self.register_buffer(name, torch.full(shape, value, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "epsilon":
            centred = x - x.mean(-1, keepdim=True)
            variance = centred.pow(2).mean(-1, keepdim=True)
            return centred / torch.sqrt(variance + self.epsilon)
        return x * (torch.erf(x / self.root) + self.one) * self.factor


@pytest.mark.parametrize("form", ["factor", "one", "root", "epsilon", "none of them"])
def test_a_number_that_adds_axes_is_no_number(form: str) -> None:
    case = Case(Deep(form), (double(2, 3, 8),), ["gelu", "layer_norms"])
    assert sum(case.counts.values()) == (form == "none of them")
    case.check(double(2, 3, 8), max_rel_l2=1e-7)


class DeepScale(nn.Module):
    """Attention on rank 4 whose scale has five axes."""

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * torch.full((1,) * 5, 0.5), -1) @ k


def test_a_scale_that_adds_axes_stays() -> None:
    inputs = (double(2, 2, 3, 4), double(2, 2, 5, 4))
    case = Case(DeepScale().double(), inputs, ["attention"])
    assert case.counts["attention"] == 0
    case.check(*inputs)


class Places(nn.Module):
    """A look-up whose flat places count up although its rows and columns do not."""

    def __init__(self, *, is_shifted: bool) -> None:
        super().__init__()
        rows, columns = torch.arange(2).repeat_interleave(3), torch.arange(3).repeat(2)
        if is_shifted:
            rows, columns = torch.ones_like(rows), torch.arange(6) - 3
        self.register_buffer("rows", rows.reshape(2, 3))
        self.register_buffer("columns", columns.reshape(2, 3))

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        return table[self.rows, self.columns]


@pytest.mark.parametrize("is_shifted", [True, False])
def test_only_places_counted_from_the_front_are_the_table(is_shifted: bool) -> None:
    table = double(2, 3)
    case = Case(Places(is_shifted=is_shifted), (table,), ["truths"])
    assert case.counts["truths"] == (not is_shifted)
    case.check(table)


class Chosen(nn.Module):
    """A look-up by truths, whose numbers would be places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("is_chosen", torch.tensor([False, True]))

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        return table[self.is_chosen] * 2


def test_truths_are_no_places() -> None:
    case = Case(Chosen(), (double(2),), ["truths"])
    assert case.counts["truths"] == 0
    case.check(double(2))


class Widened(nn.Module):
    """A mask of each row of a batch, with what is true of every position."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return (given & (torch.arange(7) >= 0)[:, None]).logical_not()


@pytest.mark.parametrize("width", [7, 1])
def test_what_is_always_true_goes_with_a_batch_of_any_size(width: int) -> None:
    case = Case(Widened(), (double(3, 1, width) > 0,), ["truths"], (DYNAMIC,))
    assert case.counts["truths"] == 1
    for batch in (1, 3, 8):
        case.check(double(batch, 1, width) > 0)
