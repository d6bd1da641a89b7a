"""Seconds as people read them in messages and tables."""


def milliseconds(duration_s: float, decimals: int | None = None) -> str:
    """A duration in milliseconds, with digits that say something: `0.35 ms`, `2 ms`, `1500 ms`.

    With `decimals` always so many, as figures that are compared have them.
    """
    duration_ms = duration_s * 1000
    if decimals is not None:
        return f"{duration_ms:.{decimals}f} ms"
    return f"{duration_ms:.0f} ms" if abs(duration_ms) >= 10 else f"{duration_ms:.2g} ms"
