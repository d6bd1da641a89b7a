"""Calibrated graphs, kept on disk: every kind of engine starts from the same one.

Calibrating runs the master on every sample, for seconds to minutes, and each build is a process
of its own. An entry is named by all that the graph depends on, so it can be missing but never
stale.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from services.engines.caches.disk_bounds import remove_oldest

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 4 * 2**30
MAX_AGE_S = 7 * 24 * 3600.0
# More than protobuf writes as one message.
_MAX_ENTRY_BYTES = 2**31 - 1


def kept_graph(
    folder: Path, identity: Mapping[str, str], make: Callable[[], onnx.ModelProto]
) -> onnx.ModelProto:
    """The graph of that identity, from the folder or made and then kept; raises what `make` does.

    Args:
        folder: where graphs are kept; need not exist.
        identity: everything that the graph depends on.
        make: makes it, its weights in memory.
    """
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    path = folder / f"{name}.onnx"
    kept = _read(path)
    if kept is not None:
        return kept
    made = make()
    if made.ByteSize() <= _MAX_ENTRY_BYTES:
        _write(made, path)
    return made


def _read(path: Path) -> onnx.ModelProto | None:
    try:
        model = onnx.load(path)
        # What was not read for long goes first.
        os.utime(path)
    except FileNotFoundError:
        return None
    except (OSError, DecodeError) as error:
        logger.warning("kept graph %s is damaged (%s); it is calibrated again", path, error)
        return None
    return model


def _write(model: onnx.ModelProto, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = ((each, each.stat()) for each in path.parent.iterdir())
        remove_oldest(found, max_bytes=MAX_CACHE_BYTES, max_age_s=MAX_AGE_S)
        with tempfile.TemporaryDirectory(dir=path.parent.parent, prefix=".typed-") as workspace:
            part = Path(workspace, path.name)
            onnx.save(model, part)
            # Two builds may make the same: the later rename puts an equal graph in place.
            part.replace(path)
    except OSError as error:  # a full disk costs time, no build
        logger.warning("graph %s is not kept: %s", path, error)
