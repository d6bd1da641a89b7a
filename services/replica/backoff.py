"""How long what failed is let be: twice as long after each failure in a row, up to a bound."""

# Every bound is reached before; the power of a few thousand failures would overflow a float.
_MAX_DOUBLINGS = 16


def wait_after(num_failures: int, *, first_s: float, most_s: float) -> float:
    """Seconds to wait after that many failures in a row, at least one."""
    return min(first_s * 2.0 ** min(num_failures - 1, _MAX_DOUBLINGS), most_s)
