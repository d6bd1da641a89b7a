"""Rewrites of image networks; what cuDNN fuses is played by its parts on the CPU."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.export import Dim

from compiler_worker.fx_rewrites.names import NAMES
from tests.unit.compiler_worker.fx_rewrites.rewritten import Case, double

aten = torch.ops.aten
DYNAMIC = {0: Dim("batch", min=1, max=8)}


class Block(nn.Module):
    """A residual block with a projection beside it, as ResNets have them, after a stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.one = nn.Conv2d(8, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 16, 1, bias=False)
        self.side = nn.Conv2d(8, 16, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in (8, 8, 16, 16))
        for norm in self.norms:
            nn.init.uniform_(norm.running_var, 0.5, 2)
            for tensor in (norm.running_mean, norm.weight, norm.bias):
                nn.init.normal_(tensor)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        stem = torch.relu(self.norms[0](self.stem(image)))
        x = torch.max_pool2d(stem, 3, 2, 1)
        y = torch.relu(self.norms[1](self.one(x)))
        total = self.norms[2](self.two(y)) + self.norms[3](self.side(x))
        return torch.relu(total).mean((2, 3))


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block().double().eval()


@pytest.fixture
def played() -> Iterator[None]:
    """Fused ops of cuDNN, on the CPU, from the ops that they fuse."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_convolution_relu", _relu, "CPU")
    library.impl("cudnn_convolution_add_relu", _add_relu, "CPU")
    yield
    library._destroy()  # noqa: SLF001 - torch ends a registration with its object, at some time


def _relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *window: object) -> torch.Tensor:
    return torch.relu(torch.conv2d(x, w, b, *window))  # type: ignore[call-overload,no-any-return]


def _add_relu(
    x: torch.Tensor,
    w: torch.Tensor,
    z: torch.Tensor,
    alpha: float,
    b: torch.Tensor,
    *window: object,
) -> torch.Tensor:
    total = torch.conv2d(x, w, b, *window) + alpha * z  # type: ignore[call-overload]
    return torch.relu(total)


def test_normalisations_become_part_of_the_weights_with_dims_kept(block: Block) -> None:
    case = Case(block, (double(2, 3, 20, 24),), ["batch_norms"], (DYNAMIC,))
    assert case.counts["batch_norms"] == case.num_calls_before(aten.batch_norm.default) == 4
    assert case.num_calls(aten.batch_norm.default) == 0
    for batch in (1, 8):
        case.check(double(batch, 3, 20, 24))


def test_a_convolution_that_others_read_keeps_its_normalisation() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.norm(y) * y

    case = Case(Shared().double().eval(), (double(2, 3, 9, 9),), ["batch_norms"])
    assert case.counts["batch_norms"] == 0
    case.check(double(2, 3, 9, 9))


def test_sums_and_relus_join_their_convolutions(block: Block, played: None) -> None:
    names = ["batch_norms", "channels_last", "fused_convolutions"]
    case = Case(block, (double(2, 3, 20, 24),), names)
    assert case.counts["fused_convolutions"] == 3
    assert case.num_calls(aten.cudnn_convolution_relu.default) == 2
    assert case.num_calls(aten.cudnn_convolution_add_relu.default) == 1
    assert case.num_calls(aten.relu.default) == case.num_calls(aten.add.Tensor) == 0
    # The convolution beside it gave its bias away.
    [plain] = [n for n in case.graph.graph.nodes if n.target is aten.conv2d.default]
    assert plain.args[2] is None
    case.check(double(2, 3, 20, 24))


def test_weights_and_the_image_lie_channels_last(block: Block) -> None:
    case = Case(block, (double(2, 3, 20, 24),), ["channels_last"])
    assert case.counts["channels_last"] == 2  # kernels of one pixel lie so already
    for node in case.graph.graph.nodes:
        if node.target is aten.conv2d.default:
            assert node.args[1].meta["val"].is_contiguous(memory_format=torch.channels_last)
    case.check(double(2, 3, 20, 24))


def test_all_rewrites_together(block: Block, played: None) -> None:
    module = nn.Sequential(block, nn.Linear(16, 5)).bfloat16().eval()
    image = double(1, 3, 20, 24).bfloat16()
    case = Case(module, (image,), NAMES)
    applied = {name for name, count in case.counts.items() if count}
    folded = {"batch_norms", "channels_last", "fused_convolutions"}
    assert applied == folded | {"single_rows"}
    case.check(image, max_rel_l2=2e-2)
