"""Seconds as people read them in messages and tables."""

_MINUTE_S = 60
_HOUR_S = 3600


def milliseconds(duration_s: float, decimals: int | None = None) -> str:
    """A duration in milliseconds, with significant digits: `0.35 ms`, `2 ms`, `1500 ms`.

    With `decimals` always so many, as figures that are compared have them.
    """
    duration_ms = duration_s * 1000
    if decimals is not None:
        return f"{duration_ms:.{decimals}f} ms"
    return f"{duration_ms:.0f} ms" if abs(duration_ms) >= 10 else f"{duration_ms:.2g} ms"


def readable_duration(duration_s: float) -> str:
    """A duration in the units that people would use: `0.4 s`, `45 s`, `2 min 10 s`, `1 h 5 min`."""
    if duration_s < 10:
        return f"{duration_s:.1f} s"
    seconds = round(duration_s)
    if seconds < _MINUTE_S:
        return f"{seconds} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s"
    return f"{seconds // _HOUR_S} h {seconds % _HOUR_S // _MINUTE_S} min"
