"""Attention and projections whose parts differ in type: what a type loses is part of the graph."""

import pytest
import torch
from torch import nn

from tests.unit.compiler_worker.fx_rewrites.rewritten import Case, double

aten = torch.ops.aten
SHAPE = (2, 3, 5, 8)


class Cast(nn.Module):
    """Attention with casts around its softmax."""

    def __init__(self, before: tuple[torch.dtype, ...], after: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2)
        for dtype in self.before:
            scores = scores.to(dtype)
        probabilities = torch.softmax(scores, -1)
        for dtype in self.after:
            probabilities = probabilities.to(dtype)
        return probabilities @ v


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ((torch.float64,), (torch.float32,), 1),
        ((torch.int32, torch.float32), (), 0),
        ((torch.bool, torch.float32), (), 0),
        ((torch.bfloat16, torch.float32), (), 0),
        ((), (torch.int32, torch.float32), 0),
        ((), (torch.bool, torch.float32), 0),
        ((), (torch.float8_e4m3fn, torch.float32), 0),
    ],
    ids=str,
)
def test_only_casts_that_change_no_number_are_looked_through(
    before: tuple[torch.dtype, ...], after: tuple[torch.dtype, ...], count: int
) -> None:
    inputs = tuple((double(*SHAPE) + n).float() for n in range(3))
    case = Case(Cast(before, after), inputs, ["attention"])
    assert case.counts["attention"] == count
    case.check(*inputs, max_rel_l2=1e-6)


class Masked(nn.Module):
    """Attention in a narrow type up to its scores, and with a mask of another type."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)).float() + mask
        return torch.softmax(scores, -1).to(q.dtype) @ v


@pytest.mark.parametrize("number", [2048.5, -1e6])
def test_a_mask_that_the_operands_type_cannot_hold_stays(number: float) -> None:
    q, k, v = ((double(*SHAPE) + n).half() for n in range(3))
    mask = torch.full((2, 1, 5, 5), number)
    mask[..., :2] += 0.25
    case = Case(Masked(), (q, k, v, mask), ["attention"])
    assert case.counts["attention"] == 0
    case.check(q, k, v, mask)
    narrow = Case(Masked(), (q, k, v, mask.half()), ["attention"])
    assert narrow.counts["attention"] == 1


class Biased(nn.Module):
    """Three products of one tensor, with biases of two types."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            self.register_buffer(f"w{name}", double(8, 4).half())
            self.register_buffer(f"b{name}", double(4).half())
        self.register_buffer("bc", double(4).float())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x @ self.get_buffer(f"w{n}") + self.get_buffer(f"b{n}") for n in "abc")


def test_products_with_biases_of_another_type_stay_apart() -> None:
    x = double(3, 8).half()
    case = Case(Biased(), (x,), ["projections"])
    assert case.counts["projections"] == 1
    # `check` compares the types of the outputs too.
    case.check(x, max_rel_l2=1e-3)
