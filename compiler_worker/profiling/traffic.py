"""Bytes and FLOPs of every ATen op that eager PyTorch dispatches, from the tensors it really saw.

The model of a chain: n elementwise ops that take and give tensors of one size, of which c
further operands come from elsewhere. Run one by one they move 2n + c tensors, for each op reads
what the one before it wrote; fused into one kernel they move 2 + c. So the gain to expect is
(2n + c) / (2 + c), and nothing where memory is not the limit.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_ATEN = torch.ops.aten
# They read as many rows of their table as they write, not all of it.
_LOOKUPS = {_ATEN.index, _ATEN.embedding, _ATEN.index_select, _ATEN.gather}
# What torch's own counter lacks, by what it has: same shapes, same FLOPs.
_LIKE_ATTENTION = {_ATEN._scaled_dot_product_flash_attention_for_cpu}  # noqa: SLF001
_LIKE_PRODUCT = {_ATEN._addmm_activation}  # noqa: SLF001
_LIKE_CONVOLUTION = {_ATEN.cudnn_convolution_relu, _ATEN.cudnn_convolution_add_relu}


@dataclass(frozen=True, kw_only=True)
class Dispatched:
    """One ATen op as eager PyTorch ran it.

    Attributes:
        node: name of the graph's node that it was run for.
        op: its name, `aten.add.Tensor`.
        read_sizes, written_sizes: elements of each tensor.
        is_free: a view or a check: it moves no tensor and launches no kernel.
    """

    node: str
    op: str
    read_sizes: tuple[int, ...]
    written_sizes: tuple[int, ...]
    num_bytes: int
    num_flops: int
    is_free: bool


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain of ops on tensors of one size.

    Attributes:
        num_ops: n, its length.
        num_sides: c, operands of that size that no op of the chain handed on.
    """

    num_ops: int
    num_sides: int

    @property
    def gain(self) -> float:
        """How many times less one kernel moves than the ops one by one: (2n + c) / (2 + c)."""
        return (2 * self.num_ops + self.num_sides) / (2 + self.num_sides)


def chain_of(ops: Sequence[Dispatched]) -> Chain | None:
    """The chain that these ops form; None when one takes or gives tensors of another size.

    Smaller operands, such as a bias, are not counted: next to the others they cost nothing.
    """
    size = max((size for op in ops for size in op.written_sizes), default=0)
    num_reads = 0
    for op in ops:
        num_large = op.read_sizes.count(size)
        if not num_large or op.written_sizes.count(size) != 1 or max(op.read_sizes) > size:
            return None
        num_reads += num_large
    return Chain(num_ops=len(ops), num_sides=num_reads - len(ops)) if ops else None


class DispatchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every op that is dispatched while it is entered.

    Attributes:
        node: set by the runner of a graph to the name of the node that runs now.
        ops: what was dispatched, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.node = ""
        self.ops: list[Dispatched] = []

    # Nothing is traced here: to hide from Dynamo would import it, for seconds.
    _should_skip_dynamo = classmethod(lambda _: False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, and note it."""
        result = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        made = _tensors(result)
        is_free = _is_free(func, given, made)
        self.ops.append(
            Dispatched(
                node=self.node,
                op=str(func),
                read_sizes=tuple(map(_touched, given)),
                written_sizes=tuple(map(_touched, made)),
                num_bytes=0 if is_free else _bytes_moved(func, given, made),
                num_flops=_flops(func, args, kwargs or {}, result),
                is_free=is_free,
            )
        )
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_free(func: Any, given: Iterable[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """Whether nothing new was written: only views of what was given, or no tensor at all."""
    # Its result shares memory with its argument and is still no view: it was written.
    if func._schema.is_mutable:  # noqa: SLF001
        return False
    # By storage: a view has another pointer and the same memory.
    memory = {tensor.untyped_storage().data_ptr() for tensor in given if tensor.numel()}
    return all(not t.numel() or t.untyped_storage().data_ptr() in memory for t in made)


def _touched(tensor: torch.Tensor) -> int:
    """Elements that lie in memory: an expanded dimension repeats what is there once."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in pairs if stride or not size)


def _bytes_moved(func: Any, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    """Every input read once and every output written once."""
    reads = [_touched(tensor) * tensor.element_size() for tensor in given]
    written = sum(_touched(tensor) * tensor.element_size() for tensor in made)
    if reads and func.overloadpacket in _LOOKUPS:
        reads[0] = min(reads[0], written)
    return sum(reads) + written


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of matrix products, convolutions and attention; others are limited by memory."""
    packet = func.overloadpacket
    if packet in _LIKE_ATTENTION:
        attention = _ATEN._scaled_dot_product_flash_attention  # noqa: SLF001
        return int(flop_registry[attention](*args[:3], out_val=result))
    if packet in _LIKE_PRODUCT:
        return int(flop_registry[_ATEN.addmm](*args[:3], out_val=result))
    if packet in _LIKE_CONVOLUTION:
        is_transposed = False
        shape_free = (None, 1, 0, 1, is_transposed)
        return int(flop_registry[_ATEN.convolution](*args[:2], *shape_free, out_val=result))
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula else 0
