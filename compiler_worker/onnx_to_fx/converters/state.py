"""Ops that carry a state from call to call: linear attention and causal convolution.

Legend: B = batch, T = time, C = channels, K = kernel size.
"""

import operator

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.kernels.linear_attention import linear_attention
from compiler_worker.onnx_to_fx.kernels.time_loop import MAX_UNROLLED
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.registry import converter
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import Tensor

# Whether a rule has a decay, and whether it has a beta.
_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


@converter(
    "LinearAttention",
    versions=(27,),
    attributes=("chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"),
)
def convert_linear_attention(op: Op) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, heads * size] and the state after the last step."""
    query, key, value, past = op.tensor(0), op.tensor(1), op.tensor(2), op.maybe(3)
    heads = (op.attr_int("q_num_heads"), op.attr_int("kv_num_heads"))
    if min(heads) < 1 or heads[0] % heads[1]:
        raise op.refuse(f"{heads[0]} query heads are no multiple of {heads[1]} key heads")
    rule = op.attr_str("update_rule")
    if rule not in _RULES:
        raise op.refuse(f"update_rule '{rule}' is not one of {', '.join(_RULES)}")
    if _RULES[rule] != (op.has(4), op.has(5)):
        raise op.refuse(f"update_rule '{rule}' does not go with the decay and beta given")
    node = op.call(
        linear_attention,
        query,
        key,
        value,
        past,
        op.maybe(4),
        op.maybe(5),
        heads,
        op.attr_float("scale"),
        is_short(query.dims[1]),
    )
    batch, time = query.dims[:2]
    size_k, size_v = (_per_head(x.dims[2], heads[1]) for x in (key, value))
    width = None if size_v is None else size_v * heads[0]
    out, state = (op.call(operator.getitem, node, part) for part in (0, 1))
    return (
        Tensor(out, query.dtype, (batch, time, width)),
        Tensor(state, (past or query).dtype, (batch, heads[1], size_k, size_v)),
    )


def is_short(length: HostInt | None) -> bool:
    """Whether steps over a length are written out one by one when traced."""
    return isinstance(length, int) and length <= MAX_UNROLLED


def _per_head(width: HostInt | None, heads: int) -> HostInt | None:
    return None if width is None else width // heads


@converter("CausalConvWithState", versions=(27,), attributes=("activation",))
def causal_conv_with_state(op: Op) -> tuple[Tensor, Tensor]:
    """Each channel of x [B, C, T] convolved with the past; the state is the last K - 1 inputs."""
    x, weight, bias, past = op.tensor(0), op.tensor(1), op.maybe(2), op.maybe(3)
    activation = op.attr_str("activation")
    if activation not in ("none", "silu", "swish"):
        raise op.refuse(f"activation '{activation}' is not one of none, silu, swish")
    channels, carried = op.graph.dim(weight, 0), op.graph.dim(weight, 2) - 1
    if past is None:
        padded = op.call(functional.pad, x, [carried, 0])
    else:
        padded = op.call(torch.cat, [past, x], dim=2)
    node = op.call(functional.conv1d, padded, weight, bias, groups=channels)
    if activation != "none":
        node = op.call(functional.silu, node)
    # A kernel of one element carries nothing, and a slice from -0 on would be everything.
    state = op.call(torch.narrow, padded, 2, op.graph.dim(x, 2), carried)
    return x.like(node), Tensor(state, x.dtype, (*x.dims[:2], carried))
