"""Sampling at computed places of an image."""

from torch.nn import functional

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.values import Tensor

# Version 16 named the modes after two spatial axes, as torch still does.
_MODES = {
    "bicubic": "bicubic",
    "bilinear": "bilinear",
    "cubic": "bicubic",
    "linear": "bilinear",
    "nearest": "nearest",
}


@converter("GridSample", versions=(16, 20, 22))
def grid_sample(op: Op) -> Tensor:
    """Interpolate x [N, C, *spatial] at grid [N, *out, axes] of normalised positions.

    Raises UnsupportedGraphError for a rank or mode that torch's `grid_sample` does not have.
    """
    x = op.tensor(0)
    grid = op.tensor(1)
    mode = op.attr_str("mode")
    if x.rank not in (4, 5):
        raise op.refuse(f"input has rank {x.rank}, wanted 4 or 5")
    if mode not in _MODES or (x.rank == 5 and _MODES[mode] == "bicubic"):
        raise op.refuse(f"mode '{mode}' at rank {x.rank} is not translated")
    node = op.call(
        functional.grid_sample,
        x,
        grid,
        mode=_MODES[mode],
        padding_mode=op.choice("padding_mode", ("zeros", "border", "reflection")),
        align_corners=bool(op.attr_int("align_corners")),
    )
    return Tensor(node, x.dtype, (*x.dims[:2], *grid.dims[1:-1]))
