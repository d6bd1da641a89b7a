"""Seconds as people read them in messages."""


def milliseconds(duration_s: float) -> str:
    """A duration in milliseconds, with digits that say something: `0.35 ms`, `2 ms`, `1500 ms`."""
    duration_ms = duration_s * 1000
    return f"{duration_ms:.0f} ms" if abs(duration_ms) >= 10 else f"{duration_ms:.2g} ms"
