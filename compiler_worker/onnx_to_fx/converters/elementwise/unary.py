"""Ops of one operand, element by element."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.elements import wrapped
from compiler_worker.onnx_to_fx.dtypes import WIDE_UNSIGNED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, sym_max
from compiler_worker.onnx_to_fx.values import HostValue, Tensor, host_elementwise

_UNARY: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "Acos": (torch.acos, (7, 22)),
    "Acosh": (torch.acosh, (9, 22)),
    "Asin": (torch.asin, (7, 22)),
    "Asinh": (torch.asinh, (9, 22)),
    "Atan": (torch.atan, (7, 22)),
    "Atanh": (torch.atanh, (9, 22)),
    "Ceil": (torch.ceil, (6, 13)),
    "Cos": (torch.cos, (7, 22)),
    "Cosh": (torch.cosh, (9, 22)),
    "Erf": (torch.erf, (9, 13)),
    "Exp": (torch.exp, (6, 13)),
    "Floor": (torch.floor, (6, 13)),
    "HardSwish": (functional.hardswish, (14, 22)),
    "Log": (torch.log, (6, 13)),
    "Mish": (functional.mish, (18, 22)),
    "Reciprocal": (torch.reciprocal, (6, 13)),
    "Relu": (torch.relu, (6, 13, 14)),
    # Both round halves to even.
    "Round": (torch.round, (11, 22)),
    "Sigmoid": (torch.sigmoid, (6, 13)),
    "Sign": (torch.sign, (9, 13)),
    "Sin": (torch.sin, (7, 22)),
    "Sinh": (torch.sinh, (9, 22)),
    "Softsign": (functional.softsign, (1, 22)),
    "Sqrt": (torch.sqrt, (6, 13)),
    "Tan": (torch.tan, (7, 22)),
    "Tanh": (torch.tanh, (6, 13)),
}


def _unary(function: Callable[..., Any]) -> Callable[[Op], Tensor]:
    def convert(op: Op) -> Tensor:
        x = op.tensor(0)
        return x.like(op.call(function, x))

    return convert


for _name, (_function, _versions) in _UNARY.items():
    converter(_name, versions=_versions)(_unary(_function))


def _on_host(function: Callable[[HostInt], HostInt]) -> Callable[[Op], HostValue]:
    def convert(op: Op) -> HostValue:
        return host_elementwise(function, op.host(0), dtype=op.value(0).dtype)

    return convert


def _absolute(item: HostInt) -> HostInt:
    return sym_max(item, -item) if isinstance(item, Sym) else abs(item)


converter("Abs", versions=(6, 13), host=_on_host(_absolute))(_unary(torch.abs))
converter("Neg", versions=(6, 13), host=_on_host(operator.neg))(_unary(torch.neg))


@converter("IsNaN", versions=(9, 13, 20))
def is_nan(op: Op) -> Tensor:
    """True where an element is not a number."""
    x = op.tensor(0)
    return x.like(op.call(torch.isnan, x), dtype=torch.bool)


@converter("IsInf", versions=(10, 20))
def is_inf(op: Op) -> Tensor:
    """True where an element is an infinity of the wanted signs."""
    x = op.tensor(0)
    match bool(op.attr_int("detect_negative")), bool(op.attr_int("detect_positive")):
        case True, True:
            node = op.call(torch.isinf, x)
        case True, False:
            node = op.call(torch.isneginf, x)
        case False, True:
            node = op.call(torch.isposinf, x)
        case _:
            node = op.call(torch.zeros_like, x, dtype=torch.bool)
    return x.like(node, dtype=torch.bool)


@converter("BitwiseNot", versions=(18,), carried=WIDE_UNSIGNED)
def bitwise_not(op: Op) -> Tensor:
    """Flip every bit."""
    x = op.tensor(0)
    return x.like(wrapped(op, op.call(torch.bitwise_not, x), x.dtype))
