"""Fourier transforms of signals whose last axis holds the real and the imaginary part.

16-bit floats are transformed in float32: torch's transforms on the CPU take no narrower type.
"""

from __future__ import annotations

import torch


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
