"""Integers of the host, which are Python's, beside types of so many bits."""

from __future__ import annotations

import torch

from compiler_worker.onnx_to_fx.dtypes import integer_range, num_bits
from compiler_worker.onnx_to_fx.sym import HostInt, Sym
from compiler_worker.onnx_to_fx.values import AnyValue, HostValue, host_elementwise


def is_in_range(value: AnyValue | None) -> bool:
    """Whether no integer is past its type: Python's do not wrap, so the device computes those."""
    if not isinstance(value, HostValue) or value.dtype == torch.bool:
        return True
    least, largest = integer_range(value.dtype)
    items = [item for item in value.data.reshape(-1) if not isinstance(item, Sym)]
    return all(least <= item <= largest for item in items)


def with_wrapped_symbols(value: AnyValue | None) -> AnyValue | None:
    """Wrap what is computed from sizes in fewer bits than sizes have."""
    if not isinstance(value, HostValue) or value.dtype in (torch.bool, torch.int64):
        return value
    bits = num_bits(value.dtype)

    def wrapped(item: HostInt) -> HostInt:
        if not isinstance(item, Sym) or item.node.target in _WITHIN:
            return item
        return item.apply(_wrapped_in_call, item, bits)

    return host_elementwise(wrapped, value.data, dtype=value.dtype)


def _wrapped_in_call(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    # Compared first, so that an export whose sizes never leave the type computes nothing.
    if -half <= value < half:
        return value
    return (value + half) % (2 * half) - half


# No axis is as long as 32 bits count.
_WITHIN = (torch.ops.aten.sym_size.int, _wrapped_in_call)
