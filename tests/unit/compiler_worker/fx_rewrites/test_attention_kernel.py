"""What the attention kernel is given: it is played on the CPU by what it reads and writes."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import compiler_worker.fx_rewrites

Attention = Callable[..., torch.Tensor]
BATCH, HEADS, TOKENS, SIZE = 2, 3, 24, 16
SHAPE = (BATCH, HEADS, TOKENS, SIZE)


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Attention:
    """The op of the module, whose launches are played."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit = lambda kernel: kernel  # type: ignore[attr-defined]
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()  # type: ignore[attr-defined]
    triton.cdiv = lambda n, by: -(-n // by)  # type: ignore[attr-defined]
    triton.language = language  # type: ignore[attr-defined]
    path = Path(compiler_worker.fx_rewrites.__path__[0], "attention_kernel.py")
    spec = importlib.util.spec_from_file_location("played_attention_kernel", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # No longer than that: torch looks for Triton too, and remembers what it found.
    with monkeypatch.context() as played:
        played.setitem(sys.modules, "triton", triton)
        played.setitem(sys.modules, "triton.language", language)
        played.setattr(torch.library, "triton_op", lambda *_, **__: lambda function: function)
        played.setattr(torch.library, "wrap_triton", lambda _: _Launch())
        spec.loader.exec_module(module)
    return module.attention  # type: ignore[no-any-return]


class _Launch:
    """Reads and writes memory where the kernel does, by the strides that it is told."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._run

    def _run(self, *args: Any, **options: Any) -> None:
        told = SimpleNamespace(**options)
        tensors, strides = args[:5], args[5:]
        sizes = (len(tensors[0]), told.NUM_HEADS, told.NUM_Q, told.D)
        starts = (strides[0:3], strides[3:6], strides[6:9])
        # The kernel steps by one along the last axis, whatever that axis' stride is.
        q, k, v = (
            torch.as_strided(each, (*sizes[:2], rows, told.D), (*steps, 1))
            for each, steps, rows in zip(
                tensors[:3], starts, (told.NUM_Q, told.NUM_K, told.NUM_K), strict=True
            )
        )
        found = functional.scaled_dot_product_attention(q, k, v, scale=told.SCALE)
        tensors[4].copy_(found.transpose(1, 2))


def operands(layout: str) -> list[torch.Tensor]:
    """Queries, keys and values as they come from rows of tokens, or from channels."""
    torch.manual_seed(0)
    if layout == "rows":
        flat = torch.randn(3, BATCH, TOKENS, HEADS, SIZE).unbind()
        return [each.transpose(1, 2) for each in flat]
    flat = torch.randn(3, BATCH, HEADS, SIZE, TOKENS).unbind()
    return [each.transpose(2, 3) for each in flat]


@pytest.mark.parametrize("layout", ["rows", "channels"])
def test_the_kernel_reads_the_operands_whatever_their_layout(
    attention: Attention, layout: str
) -> None:
    given = operands(layout)
    found = attention(*given, None, 0.25)
    wanted = functional.scaled_dot_product_attention(*given, scale=0.25)
    torch.testing.assert_close(found, wanted)


def test_a_trace_copies_what_lies_along_the_tokens_and_nothing_else(attention: Attention) -> None:
    rows, channels = operands("rows"), operands("channels")
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (channels[0], rows[1], rows[2])]
        seen = _clones(lambda: attention(*fakes, None, 0.25))
    assert seen == [SHAPE]


def _clones(call: Callable[[], object]) -> list[tuple[int, ...]]:
    """Shapes of the copies that a call makes."""
    with _Watch() as watch:
        call()
    return watch.found


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            self.found.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))
