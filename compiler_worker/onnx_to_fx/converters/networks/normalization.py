"""Normalisations."""

import operator

import torch
from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import Tensor


@converter("BatchNormalization", versions=(7, 9, 14, 15))
def batch_normalization(op: Op) -> list[Tensor]:
    """Normalise each channel with the recorded statistics, or in training with its own.

    Raises UnsupportedGraphError for statistics per element or of another type than the input's,
    and for outputs of training without training.
    """
    x, scale, bias, mean, variance = (op.tensor(index) for index in range(5))
    if op.version < 9 and op.attr_int("spatial") != 1:
        raise op.refuse("statistics per element (spatial 0) are not translated")
    if len({value.dtype for value in (x, scale, mean)}) > 1:
        raise op.refuse("statistics of another element type than the input's")
    if op.version >= 14 and op.attr_int("training_mode"):
        return _trained(op, x, (mean, variance), (scale, bias))
    if op.has_output(1):
        raise op.refuse("outputs of training mode without training_mode")
    epsilon = op.attr_float("epsilon")
    node = op.call(functional.batch_norm, x, mean, variance, scale, bias, False, 0.0, epsilon)
    return [x.like(node)]


def _trained(
    op: Op, x: Tensor, running: tuple[Tensor, Tensor], affine: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Return the input normalised by its own statistics, and the running ones moved to those."""
    axes = [axis for axis in range(x.rank) if axis != 1]
    # The statistics of 16-bit floats are taken in float32, so that they do not overflow.
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    source = op.method("to", x, torch.float32) if is_half else x.node
    # Of the whole batch (n), as ONNX has it: torch's running variance is that of n - 1.
    pair = op.call(torch.var_mean, source, axes, correction=0)
    own = [op.call(operator.getitem, pair, part) for part in (1, 0)]
    if is_half:
        own = [op.method("to", value, op.graph.dtype(x.dtype)) for value in own]
    epsilon = op.attr_float("epsilon")
    momentum = op.attr_float("momentum")
    node = op.call(functional.batch_norm, x, *own, *affine, False, 0.0, epsilon)
    results = [x.like(node)]
    for before, now in zip(running, own, strict=True):
        # ONNX's momentum is the share of the old statistics, torch's that of the new ones.
        kept = op.call(operator.mul, before, momentum)
        added = op.call(operator.mul, now, 1 - momentum)
        results.append(before.like(op.call(operator.add, kept, added)))
    return results


@converter("LayerNormalization", versions=(17,))
def layer_normalization(op: Op) -> list[Tensor]:
    """Normalise over the axes from `axis` on; torch keeps the sums in float32 or wider."""
    x = op.tensor(0)
    scale = op.tensor(1)
    bias = op.maybe(2)
    axis = _normalized_from(op, x)
    sizes = _normalized_sizes(op, x, scale, axis)
    affine = (scale, bias) if _covers(x, scale, bias, axis) else (None, None)
    # Not functional.layer_norm: mean and inverse deviation are outputs of ONNX's op too.
    node = op.call(torch.native_layer_norm, x, sizes, *affine, op.attr_float("epsilon"))
    y, mean, rstd = (op.call(operator.getitem, node, index) for index in range(3))
    if affine[0] is None:
        y = _scaled(op, y, scale, bias)
    kept = tuple(1 if position >= axis else size for position, size in enumerate(x.dims))
    return [x.like(y), *(Tensor(stat, torch.float32, kept) for stat in (mean, rstd))]


def _normalized_from(op: Op, x: Tensor) -> int:
    if op.attr_int("stash_type") != 1:
        raise op.refuse("only stash_type 1 (float32 statistics) is translated")
    return op.axis(op.attr_int("axis"), x.rank)


def _normalized_sizes(op: Op, x: Tensor, scale: Tensor, axis: int) -> list[HostInt]:
    """Sizes of the normalised axes; the scale's own, where static, keep the graph plain."""
    if scale.rank == x.rank - axis and None not in scale.static and 1 not in scale.static:
        return [size for size in scale.static if size is not None]
    return op.dims(0)[axis:]


def _covers(x: Tensor, scale: Tensor, bias: Tensor | None, axis: int) -> bool:
    """Whether scale and bias have exactly the normalised shape, as torch requires."""
    known = all(size not in (None, 1) for size in scale.static)
    same = bias is None or bias.dims == scale.dims
    return scale.rank == x.rank - axis and known and same and scale.dtype == x.dtype


def _scaled(op: Op, y: torch.fx.Node, scale: Tensor, bias: Tensor | None) -> torch.fx.Node:
    scaled = op.call(operator.mul, y, scale)
    return scaled if bias is None else op.call(operator.add, scaled, bias)


@converter("RMSNormalization", versions=(23,))
def rms_normalization(op: Op) -> Tensor:
    """Divide by the root mean square over the axes from `axis` on, in float32 or wider."""
    x = op.tensor(0)
    scale = op.tensor(1)
    axis = _normalized_from(op, x)
    source = x
    if x.dtype in (torch.float16, torch.bfloat16):
        source = x.like(op.method("to", x, torch.float32), dtype=torch.float32)
    square = op.call(operator.mul, source, source)
    mean = op.call(torch.mean, square, list(range(axis, x.rank)), keepdim=True)
    # Epsilon is inside of the root in ONNX.
    rms = op.call(torch.rsqrt, op.call(operator.add, mean, op.attr_float("epsilon")))
    y = op.call(operator.mul, source, rms)
    if source is not x:
        y = op.method("to", y, op.graph.dtype(x.dtype))
    return Tensor(op.call(operator.mul, y, scale), scale.dtype, x.dims)


@converter("InstanceNormalization", versions=(6, 22))
def instance_normalization(op: Op) -> Tensor:
    """Normalise each channel of each entry over its spatial axes."""
    x = op.tensor(0)
    scale = op.tensor(1)
    bias = op.tensor(2)
    node = op.call(
        torch.instance_norm,
        x,
        scale,
        bias,
        None,
        None,
        True,
        0.0,
        op.attr_float("epsilon"),
        False,
    )
    return x.like(node)


# Not version 18, whose scale and bias are per group.
@converter("GroupNormalization", versions=(21,))
def group_normalization(op: Op) -> Tensor:
    """Normalise groups of channels; scale and bias are per channel.

    Raises UnsupportedGraphError for statistics in another type than float32.
    """
    x = op.tensor(0)
    scale = op.tensor(1)
    bias = op.tensor(2)
    if op.attr_int("stash_type") != 1:
        raise op.refuse("only stash_type 1 (float32 statistics) is translated")
    groups = op.attr_int("num_groups")
    epsilon = op.attr_float("epsilon")
    return x.like(op.call(functional.group_norm, x, groups, scale, bias, epsilon))


@converter("LpNormalization", versions=(1, 22))
def lp_normalization(op: Op) -> Tensor:
    """Divide by the p-norm along an axis; a zero vector stays zero."""
    x = op.tensor(0)
    axis = op.axis(op.attr_int("axis"), x.rank)
    p = op.attr_int("p")
    norm = op.call(torch.linalg.vector_norm, x, p, axis, keepdim=True)
    safe = op.call(torch.where, op.call(torch.eq, norm, 0), 1.0, norm)
    return x.like(op.call(operator.truediv, x, safe))


@converter("LRN", versions=(1, 13))
def local_response_normalization(op: Op) -> Tensor:
    """Divide by the energy of neighbouring channels."""
    x = op.tensor(0)
    size = op.attr_int("size")
    square = op.call(operator.mul, x, x)
    spatial = [0, 0] * (x.rank - 2)
    # A window of even size reaches one channel further up than down.
    padded = op.call(functional.pad, square, [*spatial, (size - 1) // 2, size // 2])
    energy = op.call(torch.sum, op.method("unfold", padded, 1, size, 1), -1)
    scaled = op.call(operator.mul, energy, op.attr_float("alpha") / size)
    base = op.call(operator.add, scaled, op.attr_float("bias"))
    return x.like(op.call(operator.truediv, x, op.call(torch.pow, base, op.attr_float("beta"))))


@converter("MeanVarianceNormalization", versions=(9, 13))
def mean_variance_normalization(op: Op) -> Tensor:
    """Centre and scale over the given axes."""
    x = op.tensor(0)
    axes = [op.axis(axis, x.rank) for axis in op.maybe_ints("axes") or [0, 2, 3]]
    centred = op.call(operator.sub, x, op.call(torch.mean, x, axes, keepdim=True))
    square = op.call(operator.mul, centred, centred)
    deviation = op.call(torch.sqrt, op.call(torch.mean, square, axes, keepdim=True))
    # The addend is that of ONNX's own body of the op.
    node = op.call(operator.truediv, centred, op.call(operator.add, deviation, 1e-9))
    return x.like(node)
