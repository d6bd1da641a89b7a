"""Keeps glibc from handing memory back between requests.

A message of several hundred kilobytes lies above malloc's default mmap threshold: each one
is then mapped, filled through page faults and unmapped again, which takes a third to a half
of the processor time that such a request costs the gateway.
"""

import ctypes
import logging
import sys
from typing import Final

logger = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
# glibc's names and numbers; the threshold is the largest that every version of it takes.
_OPTIONS: Final = {
    "M_MMAP_THRESHOLD": (-3, 32 * _MIB),
    "M_TRIM_THRESHOLD": (-1, 256 * _MIB),
    "M_TOP_PAD": (-2, 64 * _MIB),
}


def keep_freed_memory() -> bool:
    """Set malloc's thresholds for this process; False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    refused = [name for name, option in _OPTIONS.items() if not mallopt(*option)]
    if refused:
        logger.warning("malloc refuses %s: large requests cost more", ", ".join(refused))
    return not refused
