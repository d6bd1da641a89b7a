"""TensorRT's timing cache: how fast each tactic was on one device, in a folder that is shared.

The folder is for one device name, memory, driver, version and set of flags (`shared_cache`):
timings of another device would choose kernels that are slow here. TensorRT checks what it is
given too, and what it refuses is ignored.
"""

import logging
from pathlib import Path
from typing import Any

from services.contracts.store.kept_files import keep

logger = logging.getLogger(__name__)

TIMINGS = "timing.cache"


def use_timing_cache(config: Any, folder: Path | None) -> None:
    """Have a build begin with the timings of earlier ones, and collect its own; None does not."""
    if folder is None:
        return
    known = folder / TIMINGS
    data = known.read_bytes() if known.is_file() else b""
    if not config.set_timing_cache(config.create_timing_cache(data), ignore_mismatch=False):
        logger.warning("the timing cache is not for this device or version, and is not used")
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)


def keep_timing_cache(config: Any, folder: Path | None) -> None:
    """Write the timings for the builds to come, whole or not at all."""
    cache = config.get_timing_cache() if folder else None
    if folder and cache is not None:
        keep(folder / TIMINGS, lambda part: part.write_bytes(bytes(cache.serialize())))
