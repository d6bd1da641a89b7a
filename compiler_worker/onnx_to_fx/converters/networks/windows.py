"""Sliding windows: what convolutions and pools share about kernels, strides and padding."""

from collections.abc import Sequence
from dataclasses import dataclass

from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt, Sym, ceil_div, sym_max
from compiler_worker.onnx_to_fx.values import Tensor

# Spatial rank -> suffix of torch's functions.
SPATIAL_RANKS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Window:
    """One sliding window; every list has one entry per spatial axis.

    Attributes:
        kernel: window sizes; symbolic where a weight's shape is open.
        strides: steps between windows.
        dilations: steps within a window.
        begins: padding before the first element; symbolic where SAME needs sizes.
        ends: padding after the last element.
    """

    kernel: list[HostInt]
    strides: list[int]
    dilations: list[int]
    begins: list[HostInt]
    ends: list[HostInt]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    def symmetric_padding(self) -> list[int] | None:
        """Return the padding where it is static and the same on both sides, else None."""
        sides = list(zip(self.begins, self.ends, strict=True))
        if any(isinstance(b, Sym) or isinstance(e, Sym) or b != e for b, e in sides):
            return None
        return [begin for begin in self.begins if not isinstance(begin, Sym)]


def window(op: Op, x: Tensor, kernel: Sequence[HostInt]) -> Window:
    """Read strides, dilations and padding of a node.

    Args:
        op: the node; has the attributes.
        x: [N, C, *spatial].
        kernel: sizes of the window, one per spatial axis.

    Raises:
        UnsupportedGraphError: more than 3 spatial axes, or a kernel of another rank.
    """
    rank = x.rank - 2
    if rank not in SPATIAL_RANKS:
        raise op.refuse(f"{rank} spatial axes are not translated, wanted 1 to 3")
    if len(kernel) != rank:
        raise op.refuse(f"kernel {kernel} has not {rank} axes")
    strides = op.maybe_ints("strides") or [1] * rank
    dilations = op.maybe_ints("dilations") or [1] * rank
    begins, ends = _padding(op, x, kernel, strides, dilations)
    return Window([*kernel], strides, dilations, begins, ends)


def _padding(
    op: Op, x: Tensor, kernel: Sequence[HostInt], strides: list[int], dilations: list[int]
) -> tuple[list[HostInt], list[HostInt]]:
    rank = len(kernel)
    auto = op.attr_str("auto_pad")
    if auto == "VALID":
        return [0] * rank, [0] * rank
    if auto == "NOTSET":
        pads = op.maybe_ints("pads") or [0] * (2 * rank)
        # ONNX lists the begins of all axes first; torch's pad takes pairs, the last axis first.
        return list(pads[:rank]), list(pads[rank:])
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise op.refuse(f"auto_pad '{auto}' is not translated")
    totals = [
        _same_total(
            op.graph.dim(x, axis + 2), (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        )
        for axis in range(rank)
    ]
    smaller = [total // 2 for total in totals]
    larger = [total - half for total, half in zip(totals, smaller, strict=True)]
    # SAME_UPPER has the odd element of padding at the end, SAME_LOWER at the beginning.
    return (smaller, larger) if auto == "SAME_UPPER" else (larger, smaller)


def _same_total(size: HostInt, extent: HostInt, stride: int) -> HostInt:
    """Return the padding that makes the number of windows ceil(size / stride)."""
    if stride == 1:
        return extent - 1
    return sym_max((ceil_div(size, stride) - 1) * stride + extent - size, 0)
