"""Calibrated graphs, kept on disk: every kind of engine starts from the same one.

Calibrating runs the master on every sample, for seconds to minutes, and each build is a process
of its own. An entry is named by all that the graph depends on, so it can be missing but never
stale.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from services.contracts.store.kept_files import entries, keep, read_kept, remove_oldest

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
    kept = read_kept(path, _read)
    if kept is not None:
        return kept
    made = make()
    if made.ByteSize() <= _MAX_ENTRY_BYTES:
        found = entries(folder.glob("*.onnx"))
        remove_oldest(found, max_bytes=MAX_CACHE_BYTES, max_age_s=MAX_AGE_S)
        keep(path, lambda part: onnx.save(made, part))
    return made


def _read(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    if not model.graph.node:
        # A file without bytes, as a host leaves it that lost power, is a message to protobuf.
        raise ValueError("it holds no graph")
    return model
