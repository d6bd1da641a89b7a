"""Reference outputs, kept on disk: the engines of one master are all compared with the same.

An entry is named by a digest over the model's identity and the very bytes of the inputs,
so it can be missing but never stale.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array, bytes_from_array

logger = logging.getLogger(__name__)

# Larger results cost more to keep than to compute again.
_MAX_ENTRY_BYTES = 32 * 2**20
# What a machine keeps in all; the entries that were not read for longest go first.
MAX_CACHE_BYTES = 2 * 2**30
MAX_AGE_S = 30 * 24 * 3600.0
_TEMPORARY = ".new-"
# Writing an entry takes seconds; one that is this old has lost its writer.
_MAX_WRITE_S = 3600.0
# An output may be called as an argument of numpy.savez is: `file`.
_PREFIX = "output "


def reference_folder(cache_dir: Path) -> Path:
    """Where the outputs of all references are kept."""
    return cache_dir / "references"


class CachedModel:
    """A model whose outputs are read from disk when they were computed before."""

    def __init__(self, identity: str, open_model: Callable[[], Model], directory: Path) -> None:
        """Keep outputs on disk; the model is opened when it is first needed.

        Args:
            identity: all but the inputs that the outputs depend on; other identities share no file.
            open_model: called at most once, for inputs whose outputs are not kept yet.
            directory: where the outputs are kept.
        """
        self._identity = identity
        self._open_model = open_model
        self._directory = directory

    @cached_property
    def _model(self) -> Model:
        return self._open_model()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs from disk or from the model; raises what opening or running it raises."""
        path = self._directory / f"{_digest(self._identity, inputs)}.npz"
        kept = _read(path)
        if kept is not None:
            return kept
        outputs = self._model.run(inputs)
        if _is_worth_keeping(outputs):
            _write(path, outputs)
        return outputs


def tidy(
    directory: Path, *, max_bytes: int = MAX_CACHE_BYTES, max_age_s: float = MAX_AGE_S
) -> None:
    """Remove what was not read for long, and the oldest while there is too much.

    A process that reads an entry meanwhile has it open and reads on; an entry that is gone is
    computed again.

    Args:
        directory: of the entries; may be missing.
        max_bytes: what they may hold together.
        max_age_s: since an entry was read last.
    """
    now_s = time.time()
    num_bytes = 0
    for path, found in _newest_first(directory):
        num_bytes += found.st_size
        limit_s = _MAX_WRITE_S if path.name.startswith(_TEMPORARY) else max_age_s
        if num_bytes > max_bytes or now_s - found.st_mtime > limit_s:
            num_bytes -= found.st_size
            path.unlink(missing_ok=True)


def _newest_first(directory: Path) -> list[tuple[Path, os.stat_result]]:
    entries = []
    for path in directory.glob("*.npz") if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # another worker tidies too
            entries.append((path, path.stat()))
    return sorted(entries, key=lambda entry: entry[1].st_mtime, reverse=True)


def _digest(identity: str, inputs: Mapping[str, Array]) -> str:
    hasher = hashlib.sha256(identity.encode())
    for name, array in sorted(inputs.items()):
        hasher.update(f"\n{name} {array.dtype} {list(array.shape)}\n".encode())
        hasher.update(bytes_from_array(array))
    return hasher.hexdigest()


def _read(path: Path) -> dict[str, Array] | None:
    try:
        # numpy leaves a file that it cannot read open, so it gets an open one.
        with path.open("rb") as file, np.load(file) as archive:
            # When it was last read is what `tidy` goes by; not every disk keeps that itself.
            os.utime(path)
            return {name.removeprefix(_PREFIX): archive[name] for name in archive.files}
    except FileNotFoundError:
        return None
    except Exception as error:  # an empty file is an EOFError to numpy, others are whatever
        logger.warning("kept reference %s is damaged (%s); it is computed again", path, error)
        return None


def _is_worth_keeping(outputs: Mapping[str, Array]) -> bool:
    # numpy's files do not keep extension types such as bfloat16 (kind "V").
    is_plain = all(array.dtype.kind in "fiub" for array in outputs.values())
    return is_plain and sum(array.nbytes for array in outputs.values()) <= _MAX_ENTRY_BYTES


def _write(path: Path, outputs: Mapping[str, Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY, suffix=".npz")
    named: dict[str, Array] = {_PREFIX + name: array for name, array in outputs.items()}
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **named)
        # Two children may compute the same: the later rename puts equal bytes in place.
        Path(temporary).replace(path)
    except OSError as error:  # a full disk costs time, no proof
        logger.warning("reference %s is not kept: %s", path, error)
        Path(temporary).unlink(missing_ok=True)
