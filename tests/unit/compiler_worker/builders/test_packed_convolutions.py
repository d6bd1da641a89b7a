"""Weights of convolutions arranged at build time, in graphs as Inductor freezes them."""

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from compiler_worker.builders.packed_convolutions import PackConvolutions

onednn = torch.ops.onednn
FLOATS = torch.ops.mkldnn._convolution_pointwise.default  # noqa: SLF001 - an op of torch
WINDOW: tuple[list[int], ...] = ([1, 1], [1, 1], [1, 1])
CHANNELS, WIDTH = 32, 64


class Frozen:
    """A graph of one convolution with a dynamic batch."""

    def __init__(self, example: torch.Tensor, **weights: torch.Tensor) -> None:
        self.example = example
        self.module = fx.GraphModule(torch.nn.Module(), fx.Graph())
        for name, tensor in weights.items():
            self.module.register_buffer(name, tensor)
        self.graph = fx.Graph(self.module)
        self.x = self.graph.placeholder("x")
        mode = FakeTensorMode(shape_env=ShapeEnv())
        self.x.meta["val"] = mode.from_tensor(example)
        self.weights = {name: self.graph.get_attr(name) for name in weights}

    def packed(self, call: Any, *args: Any) -> fx.GraphModule:
        """The module after the pass, checked to answer as before."""
        node = self.graph.call_function(call, (self.x, *args))
        self.graph.output(node)
        self.module.graph = self.graph
        examples = [_drawn(self.example, batch) for batch in (1, 3)]
        wanted = [self.module(x) for x in examples]
        PackConvolutions()(self.module.graph)
        self.module.recompile()
        for x, want in zip(examples, wanted, strict=True):
            torch.testing.assert_close(self.module(x), want, rtol=1e-3, atol=1e-4)
        return self.module


def _drawn(example: torch.Tensor, batch: int) -> torch.Tensor:
    shape = (batch, *example.shape[1:])
    if example.dtype is torch.uint8:
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.randn(shape)


def test_floats_are_arranged() -> None:
    torch.manual_seed(0)
    frozen = Frozen(torch.randn(2, CHANNELS, 8, 8), w=torch.randn(WIDTH, CHANNELS, 3, 3))
    module = frozen.packed(
        FLOATS,
        *(frozen.weights["w"], None, *WINDOW, 1, "none", [], ""),
    )
    arranged = [buffer for name, buffer in module.named_buffers() if name.startswith("packed_")]
    assert [tensor.is_mkldnn for tensor in arranged] == [True]


@pytest.mark.parametrize("groups", [1, 2])
def test_bytes_are_arranged_again_unless_in_groups(groups: int) -> None:
    torch.manual_seed(0)
    values = torch.randint(-127, 128, (WIDTH, CHANNELS // groups, 3, 3), dtype=torch.int8)
    scale = torch.rand(WIDTH) / 100
    weight = onednn.qconv_prepack(values, scale, 0.1, 128, *WINDOW, groups, None)
    example = torch.zeros(2, CHANNELS, 8, 8, dtype=torch.uint8)
    zeros = torch.zeros(WIDTH, dtype=torch.int32)
    frozen = Frozen(example, w=weight, scale=scale, zeros=zeros)
    nodes = frozen.weights
    module = frozen.packed(
        onednn.qconv_pointwise.default,
        *(0.1, 128, nodes["w"], nodes["scale"], nodes["zeros"], None, *WINDOW, groups),
        *(0.5, 128, torch.uint8, "relu", [], ""),
    )
    names = [name for name, _ in module.named_buffers() if name.startswith("packed_")]
    assert len(names) == (groups == 1)


def test_weights_that_are_computed_stay() -> None:
    frozen = Frozen(torch.randn(2, 4, 8, 8), w=torch.randn(8, 4, 3, 3))
    doubled = frozen.graph.call_function(torch.add, (frozen.weights["w"], frozen.weights["w"]))
    module = frozen.packed(FLOATS, *(doubled, None, *WINDOW, 1, "none", [], ""))
    assert [name for name, _ in module.named_buffers()] == ["w"]
