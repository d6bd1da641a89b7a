"""Bounds the logs of `smelt up`: a large one is copied to its older part and emptied.

The processes that write hold its descriptor, some of them are not ours, and all append (O_APPEND).
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20


def own_logs(run_dir: Path) -> Iterator[Path]:
    """Of the processes of `smelt up`, Prometheus and Grafana among them."""
    yield from run_dir.glob("*.log")
    yield from run_dir.glob("observe/*/*.log")


def older_part(path: Path) -> Path:
    """Where what a log held before it was emptied last is, byte for byte."""
    return path.with_name(f"{path.name}.1")


def bound(path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Empty a log that is larger; what it held takes the place of its older part."""
    try:
        if path.stat().st_size <= most_bytes:
            return
        with path.open("r+b") as log, older_part(path).open("wb") as older:
            while chunk := log.read(_CHUNK_BYTES):
                older.write(chunk)
                older.flush()
            # At once: a line that comes between the read that found nothing and this is lost.
            log.truncate(0)
    except OSError as error:
        logger.warning(
            "%s is larger than %d bytes and cannot be emptied: %s", path, most_bytes, error
        )
