"""Rewrites that encoders need: attention, projections, masks, biases.

Legend: B = batch, T = tokens, H = heads, D = head size.
"""

import math

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from tests.unit.compiler_worker.fx_rewrites.rewritten import Case, double

aten = torch.ops.aten
HEADS, SIZE = 4, 8
WIDTH = HEADS * SIZE
DYNAMIC = {0: Dim("batch", min=1, max=8), 1: Dim("tokens", min=2, max=32)}


class Written(nn.Module):
    """Attention in its parts, in the ways in which exporters write it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        shapes = {"q": WIDTH, "k": WIDTH, "v": WIDTH}
        for name, size in shapes.items():
            self.register_buffer(f"w{name}", double(WIDTH, size) / math.sqrt(WIDTH))
            self.register_buffer(f"b{name}", double(size))

    def forward(self, x_BTW: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._heads(x_BTW, name) for name in "qkv")
        probabilities = self._probabilities(q, k, mask_BT[:, None, None, :])
        y_BTHD = (probabilities @ v).permute(0, 2, 1, 3)
        return y_BTHD.reshape(x_BTW.shape)

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        flat = x @ getattr(self, f"w{name}") + getattr(self, f"b{name}")
        return flat.reshape(x.shape[0], x.shape[1], HEADS, SIZE).permute(0, 2, 1, 3)

    def _probabilities(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = torch.where(mask, 0.0, -1e9).to(q.dtype)
        match self.form:
            case "divided":
                return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(SIZE) + bias, -1)
            case "both scaled":
                factor = SIZE**-0.25
                merged = k.reshape(-1, k.shape[2], SIZE).permute(0, 2, 1)
                turned = merged.reshape(k.shape[0], HEADS, SIZE, k.shape[2])
                found = torch.softmax(bias + (q * factor) @ (turned * factor), 3)
                return torch.where(torch.isnan(found), 0.0, found)
            case _:
                scores = (q @ k.permute(0, 1, 3, 2)).to(torch.float64) * 0.3
                return torch.softmax(scores, dim=-1).to(q.dtype)


def masked(batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and a mask whose rows get shorter."""
    lengths = torch.tensor([max(1, tokens - 2 * row) for row in range(batch)])
    return double(batch, tokens, WIDTH), torch.arange(tokens) < lengths[:, None]


@pytest.mark.parametrize("form", ["divided", "both scaled", "no mask"])
def test_written_attention_becomes_one_call_with_its_dims_kept(form: str) -> None:
    case = Case(Written(form), masked(3, 7), ["attention"], (DYNAMIC, DYNAMIC))
    assert case.counts["attention"] == 1
    assert case.num_calls(aten.scaled_dot_product_attention.default) == 1
    assert case.num_calls(aten.softmax.int) == 0
    for sizes in ((1, 2), (3, 7), (8, 32)):
        case.check(*masked(*sizes))


class Odd(nn.Module):
    """What looks like attention and is not what the fused call computes."""

    def __init__(self, oddity: str) -> None:
        super().__init__()
        self.oddity = oddity

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> object:
        scores = q @ k.transpose(-1, -2)
        found = torch.softmax(scores, 2 if self.oddity == "other axis" else 3)
        y = v.transpose(-1, -2) @ found if self.oddity == "other side" else found @ v
        return (y, found) if self.oddity == "read twice" else y


@pytest.mark.parametrize("oddity", ["other axis", "other side", "read twice"])
def test_what_only_looks_like_attention_stays(oddity: str) -> None:
    inputs = tuple(double(2, 3, 5, 5) + n for n in range(3))
    case = Case(Odd(oddity), inputs, ["attention"])
    assert case.counts["attention"] == 0
    case.check(*inputs)


def test_projections_of_one_tensor_become_one_product() -> None:
    case = Case(Written("no mask"), masked(3, 7), ["projections"], (DYNAMIC, DYNAMIC))
    assert case.counts["projections"] == 2
    assert case.num_calls(aten.matmul.default) == case.num_calls_before(aten.matmul.default) - 2
    parts = sorted(len(parts) for parts in case.joined.values())
    assert parts == [3, 3]
    for sizes in ((1, 2), (5, 9)):
        case.check(*masked(*sizes))


class Two(nn.Module):
    """Two projections: without bias, or of which one has a bias."""

    def __init__(self, *, is_biased: bool) -> None:
        super().__init__()
        self.is_biased = is_biased
        self.register_buffer("a", double(6, 4))
        self.register_buffer("b", double(6, 5))
        self.register_buffer("bias", double(5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = x @ self.b
        return torch.sin(x @ self.a), other + self.bias if self.is_biased else other


@pytest.mark.parametrize(("is_biased", "num_saved"), [(False, 1), (True, 0)])
def test_only_projections_of_one_kind_are_merged(is_biased: bool, num_saved: int) -> None:
    case = Case(Two(is_biased=is_biased), (double(3, 6),), ["projections"])
    assert case.counts["projections"] == num_saved
    case.check(double(3, 6))


class Layers(nn.Module):
    """Each layer computes the mask again, over the grid of all positions."""

    def forward(self, x: torch.Tensor, valid_BT: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            batch, tokens = valid_BT.shape
            rows, columns = torch.arange(batch), torch.arange(tokens)
            grid = valid_BT[rows[:, None, None, None], columns[None, None, None, :]]
            is_open = (columns >= 0)[None, None, :, None] & grid
            x = functional.scaled_dot_product_attention(x, x, x, is_open)
        return x


def test_a_mask_is_computed_once_and_its_grid_is_the_mask() -> None:
    valid = masked(2, 6)[1]
    inputs = (double(2, 3, 6, 4), valid)
    case = Case(Layers(), inputs, ["repeated", "truths"])
    assert case.counts["repeated"] > 0
    assert case.num_calls_before(aten.index.Tensor) == 3
    assert case.num_calls(aten.index.Tensor) == 0
    assert case.num_calls(aten.__and__.Tensor) == 0
    assert case.num_calls(aten.reshape.default) == 1
    case.check(*inputs)


class Look(nn.Module):
    """A look-up in another order, and a conjunction that is not always true."""

    def forward(self, table: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.arange(3).flip(0), torch.arange(4)
        is_late = columns > 1
        return table[rows[:, None], columns] * (is_late & given)


def test_other_grids_and_truths_stay() -> None:
    inputs = (double(3, 4), torch.tensor([True, True, False, True]))
    case = Case(Look(), inputs, ["truths"])
    assert case.counts["truths"] == 0
    case.check(*inputs)


class Feed(nn.Module):
    """Product, bias, activation."""

    def __init__(self, activation: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = activation
        self.register_buffer("w", (double(12, 20) / 4).to(dtype))
        self.register_buffer("b", double(20).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x @ self.w + self.b)


def test_a_bias_joins_its_product_with_dims_kept() -> None:
    case = Case(Feed(nn.Tanh(), torch.float64), (double(3, 7, 12),), ["biases"], (DYNAMIC,))
    assert case.num_calls(aten.addmm.default) == 1
    assert case.num_calls(aten.matmul.default) == case.num_calls(aten.add.Tensor) == 0
    for sizes in ((1, 2), (5, 9)):
        case.check(double(*sizes, 12))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")])
def test_an_activation_joins_its_product_in_narrow_types(activation: nn.Module) -> None:
    x = double(3, 7, 12).bfloat16()
    case = Case(Feed(activation, torch.bfloat16), (x,), ["biases", "activations"])
    joined = aten._addmm_activation.default  # noqa: SLF001 - an op of torch
    assert case.num_calls(joined) == case.counts["activations"] == 1
    # The step of bfloat16 is 2**-8.
    case.check(x, max_rel_l2=4e-3)


def test_an_activation_stays_apart_in_float32() -> None:
    x = double(3, 12).float()
    case = Case(Feed(nn.GELU(), torch.float32), (x,), ["biases", "activations"])
    assert case.counts["activations"] == 0
    case.check(x, max_rel_l2=1e-6)


@pytest.mark.parametrize("is_linear", [True, False])
def test_one_row_becomes_sums(is_linear: bool) -> None:
    module = nn.Linear(12, 20).bfloat16() if is_linear else Feed(nn.Identity(), torch.bfloat16)
    x = double(1, 1, 12).bfloat16()
    case = Case(module, (x,), ["biases", "single_rows"])
    assert case.counts["single_rows"] == 1
    assert case.num_calls(aten.sum.dim_IntList) == 1
    case.check(x, max_rel_l2=4e-3)
    two = Case(module, (double(2, 12).bfloat16(),), ["biases", "single_rows"])
    assert two.counts["single_rows"] == 0
