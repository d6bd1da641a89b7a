"""Fourier transforms, and the mel scale.

The last axis of a signal holds the real and the imaginary part. 16-bit floats are transformed in
float32: torch's transforms on the CPU take no narrower type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compiler_worker.onnx_to_fx.converter_table import converter
from compiler_worker.onnx_to_fx.converters.elementwise.casting import dtype_from_attribute
from compiler_worker.onnx_to_fx.dtypes import CARRIED, numpy_dtype_from_torch
from compiler_worker.onnx_to_fx.op import Op
from compiler_worker.onnx_to_fx.sym import HostInt
from compiler_worker.onnx_to_fx.values import Constant, Tensor


@converter("DFT", versions=(17, 20))
def convert_dft(op: Op) -> Tensor:
    """Discrete Fourier transform along one axis of x [..., 1 or 2].

    Raises UnsupportedGraphError for the last axis, and for one side of a complex signal.
    """
    x = op.tensor(0)
    axis = op.axis(_dft_axis(op), x.rank)
    if axis == x.rank - 1:
        raise op.refuse("the last axis holds the parts of complex numbers")
    length = op.ints(1)[0] if op.has(1) else None
    is_inverse = bool(op.attr_int("inverse"))
    is_onesided = bool(op.attr_int("onesided"))
    if is_onesided and x.dims[-1] == (1 if is_inverse else 2):
        raise op.refuse("a one-sided transform goes between real signals and complex spectra")
    node = op.call(dft, x, length, axis, is_inverse, is_onesided)
    parts = 1 if is_onesided and is_inverse else 2
    size = None if is_onesided else length if length is not None else x.dims[axis]
    return Tensor(node, x.dtype, (*x.dims[:axis], size, *x.dims[axis + 1 : -1], parts))


def _dft_axis(op: Op) -> int:
    if op.version < 20:
        return op.attr_int("axis")
    return op.static_ints(2)[0] if op.has(2) else -2


@converter("STFT", versions=(17,))
def convert_stft(op: Op) -> Tensor:
    """Fourier transform of each frame of a signal [B, L, 1 or 2].

    Raises UnsupportedGraphError for another rank, and for one side of a complex signal.
    """
    signal = op.tensor(0)
    window = op.maybe(2)
    is_onesided = bool(op.attr_int("onesided"))
    if signal.rank != 3:
        raise op.refuse(f"the signal has rank {signal.rank}, wanted 3")
    if is_onesided and signal.dims[-1] == 2:
        raise op.refuse("the spectrum of a complex signal has two sides")
    length = _frame_length(op)
    node = op.call(stft, signal, op.ints(1)[0], window, length, is_onesided)
    bins = length // 2 + 1 if is_onesided else length
    return Tensor(node, signal.dtype, (signal.dims[0], None, bins, 2))


def _frame_length(op: Op) -> HostInt:
    if op.has(3):
        return op.ints(3)[0]
    return op.dims(2)[0] if op.has(2) else op.dims(0)[1]


def _output_dtype(op: Op) -> torch.dtype:
    dtype = dtype_from_attribute(op, op.attr_int("output_datatype"))
    if dtype in CARRIED or not dtype.is_floating_point:
        raise op.refuse(f"output_datatype {dtype} is not translated")
    return dtype


@converter("MelWeightMatrix", versions=(17,))
def mel_weight_matrix(op: Op) -> Constant:
    """Triangular filters on the mel scale [spectrum bins, mel bins], computed while importing.

    Raises UnsupportedGraphError where the filters reach beyond the spectrum.
    """
    dtype = _output_dtype(op)
    bins, length, rate = (op.static_ints(index)[0] for index in range(3))
    # In the bounds' own type, as ONNX's reference does: edges are rounded down to bins.
    low, high = (_number(op, index) for index in (3, 4))
    low_mel, high_mel = (2595 * np.log1p(hertz / 700) / np.log(10) for hertz in (low, high))
    mels = np.arange(bins + 2) * ((high_mel - low_mel) / (bins + 2)) + low_mel
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    edges = (((length + 1) * hertz) // rate).astype(np.int64)
    if edges[0] < 0 or edges[-1] > length // 2 + 1:
        raise op.refuse(f"mel bins reach up to bin {edges[-1]} of {length // 2 + 1}")
    matrix = np.stack([_triangle(length // 2 + 1, *edges[k : k + 3]) for k in range(bins)], axis=1)
    data = matrix.astype(numpy_dtype_from_torch(dtype))
    return Constant(op.proto.output[0], np.ascontiguousarray(data), dtype)


def _number(op: Op, index: int) -> Any:
    value = op.value(index)
    if not isinstance(value, Constant) or not value.dtype.is_floating_point:
        raise op.refuse(f"input {index} ('{op.proto.input[index]}') must be a constant float")
    return value.array.reshape(-1)[0]


def _triangle(size: int, low: int, centre: int, high: int) -> NDArray[np.float64]:
    """Rise from low to 1 at the centre, fall to high; a side without width is left out."""
    place = np.arange(size)
    column = np.zeros(size)
    if low == centre:
        column[place == centre] = 1
    else:
        rising = (place >= low) & (place <= centre)
        column[rising] = (place[rising] - low) / (centre - low)
    if high > centre:
        falling = (place >= centre) & (place < high)
        column[falling] = (high - place[falling]) / (high - centre)
    return column


def dft(
    x: torch.Tensor, length: int | None, axis: int, is_inverse: bool, is_onesided: bool
) -> torch.Tensor:
    """Transform along one axis; the result has the type of x.

    Args:
        x: [..., 1 or 2].
        length: what the axis is cut or padded with zeros to; None leaves it.
        axis: never the last one.
        is_inverse: divides by the length, as ONNX does.
        is_onesided: of a real signal, bins from 0 to half the length; or back from these.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if is_onesided and is_inverse:
        signal: torch.Tensor = torch.fft.irfft(_complex(wide), n=length, dim=axis)
        return signal.unsqueeze(-1).to(x.dtype)
    if is_onesided:
        # A one-sided spectrum is that of a real signal: reshape fails for a complex one.
        spectrum = torch.fft.rfft(wide.reshape(wide.shape[:-1]), n=length, dim=axis)
    elif is_inverse:
        # torch divides the inverse by the length by default, and so does ONNX.
        spectrum = torch.fft.ifft(_complex(wide), n=length, dim=axis)
    else:
        spectrum = torch.fft.fft(_complex(wide), n=length, dim=axis)
    parts: torch.Tensor = torch.view_as_real(spectrum)
    return parts.to(x.dtype)


def _complex(x: torch.Tensor) -> torch.Tensor:
    # Where there is no imaginary part, the sum of nothing is zero.
    return torch.complex(x[..., 0], x[..., 1:].sum(-1))


def stft(
    signal: torch.Tensor,
    step: int,
    window: torch.Tensor | None,
    length: int,
    is_onesided: bool,
) -> torch.Tensor:
    """Transform every frame of a signal: [B, frames, bins, 2].

    Args:
        signal: [B, L, 1 or 2].
        step: samples from frame to frame.
        window: [length], multiplied with each frame; None leaves frames as they are.
        length: samples of a frame.
        is_onesided: bins from 0 to half the length.
    """
    frames = (signal.shape[1] - length) // step + 1
    starts = torch.arange(frames, device=signal.device) * step
    places = starts.unsqueeze(1) + torch.arange(length, device=signal.device)
    framed = signal[:, places]
    if window is not None:
        framed = framed * window.unsqueeze(-1)
    return dft(framed, None, 2, False, is_onesided)
