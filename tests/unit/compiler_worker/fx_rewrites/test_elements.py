"""Rewrites of what is computed element by element: norms, activations, casts, reshapes."""

import math

import pytest
import torch
from torch import nn
from torch.export import Dim

from compiler_worker.fx_rewrites.names import NAMES, rewrites_for
from compiler_worker.fx_rewrites.rewrite import REWRITES
from services.contracts.hardware.kinds import Precision
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case, double

aten = torch.ops.aten
DYNAMIC = {0: Dim("batch", min=1, max=8)}


class Norm(nn.Module):
    """Layer normalisation in its parts."""

    def __init__(self, form: str, *, is_affine: bool) -> None:
        super().__init__()
        self.form, self.is_affine = form, is_affine
        self.register_buffer("scale", double(16))
        self.register_buffer("bias", double(16))
        self.register_buffer("epsilon", torch.tensor(1e-3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        match self.form:
            case "divided":
                y = centred / torch.sqrt(variance + 1e-3)
            case "rsqrt":
                y = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + self.epsilon)
            case "other squares":
                y = centred / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)
            case _:
                y = (x - x.mean(-2, keepdim=True)) / torch.sqrt(variance + 1e-3)
        return self.scale * y + self.bias if self.is_affine else y


@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("form", ["divided", "rsqrt"])
def test_a_written_normalisation_becomes_one_call(form: str, is_affine: bool) -> None:
    module = Norm(form, is_affine=is_affine)
    case = Case(module, (double(3, 5, 16),), ["layer_norms"], (DYNAMIC,))
    assert case.num_calls(aten.native_layer_norm.default) == case.counts["layer_norms"] == 1
    assert case.num_calls(aten.mean.dim) == 0
    for batch in (1, 3, 8):
        case.check(double(batch, 5, 16))


@pytest.mark.parametrize("form", ["other squares", "other axis"])
def test_what_only_looks_like_a_normalisation_stays(form: str) -> None:
    case = Case(Norm(form, is_affine=True), (double(3, 5, 16),), ["layer_norms"])
    assert case.counts["layer_norms"] == 0
    case.check(double(3, 5, 16))


class Gelu(nn.Module):
    """GELU in its parts."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.form:
            case "erf divided":
                return x * (torch.erf(x / 1.4142135381698608) + 1.0) * 0.5
            case "erf multiplied":
                return (x * 0.5) * (1 + torch.erf(x * math.sqrt(0.5)))
            case "tanh":
                inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))
                return 0.5 * x * (1 + torch.tanh(inner))
            case _:
                return x * (torch.erf(x / 2.0) + 1.0) * 0.5


@pytest.mark.parametrize("form", ["erf divided", "erf multiplied", "tanh"])
def test_a_written_gelu_becomes_one_call(form: str) -> None:
    case = Case(Gelu(form), (double(4, 9),), ["gelu"], (DYNAMIC,))
    assert case.num_calls(aten.gelu.default) == case.counts["gelu"] == 1
    assert case.num_calls(aten.mul.Tensor) == 0
    # Frameworks write the square root of two with the digits of float32.
    case.check(double(8, 9), max_rel_l2=1e-7)


def test_another_width_is_no_gelu() -> None:
    case = Case(Gelu("wider"), (double(4, 9),), ["gelu"])
    assert case.counts["gelu"] == 0
    case.check(double(4, 9))


class Casts(nn.Module):
    """An island of a wider type, a cast to the same type, and one that rounds."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        island = x.to(torch.float64).transpose(0, 1).reshape(-1).to(torch.float32)
        rounded = x.to(torch.bfloat16).to(torch.float32)
        return torch.sin(island.to(torch.float32)), torch.sin(rounded)


def test_casts_that_lose_nothing_go_and_casts_that_round_stay() -> None:
    x = double(3, 4).float()
    case = Case(Casts(), (x,), ["casts"])
    assert case.counts["casts"] >= 2
    kept = [node.args[1] for node in case.graph.graph.nodes if node.target is aten.to.dtype]
    assert kept == [torch.bfloat16, torch.float32]
    case.check(x, max_rel_l2=0.0)


class Shapes(nn.Module):
    """Reshapes of reshapes, permutations that undo each other, and one that stays."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(x.shape[0], 12).reshape(x.shape[0], 4, 3)
        y = y.permute(0, 2, 1).permute(0, 2, 1)
        return torch.sin(y.permute(2, 0, 1).permute(1, 0, 2))


def test_chains_of_reshapes_become_one() -> None:
    case = Case(Shapes(), (double(3, 2, 6),), ["reshapes"], (DYNAMIC,))
    assert case.num_calls(aten.reshape.default) == 1
    assert case.num_calls(aten.permute.default) == 1
    for batch in (1, 3, 8):
        case.check(double(batch, 2, 6), max_rel_l2=0.0)


class Random(nn.Module):
    """Two draws that must not become one, and a sum that may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(x) - torch.rand_like(x)
        return noise * 0 + (x + 1) * (x + 1) + (x + 1.0)


def test_what_is_equal_is_shared_and_what_is_drawn_is_not() -> None:
    case = Case(Random(), (double(3, 4),), ["repeated"])
    assert case.num_calls(aten.rand_like.default) == 2
    assert case.num_calls_before(aten.add.Tensor) - case.num_calls(aten.add.Tensor) == 1
    case.check(double(3, 4))


def test_every_name_has_its_rewrite_and_none_is_cudas_on_a_cpu() -> None:
    assert sorted(NAMES) == sorted(REWRITES)
    in_each = [rewrites_for("cuda", precision) for precision in Precision]
    assert {name for names in in_each for name in names} == set(NAMES)
    on_cpu = rewrites_for("cpu")
    assert "projections" in on_cpu
    assert not {"fused_convolutions", "short_attention", "activations"} & set(on_cpu)
