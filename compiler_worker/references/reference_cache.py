"""Reference outputs, kept on disk: the engines of one master are all compared with the same.

An entry is named by a digest over the model's identity and the very bytes of the inputs,
so it can be missing but never stale.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array, bytes_from_array
from services.contracts.store.kept_files import entries, keep, read_kept, remove_oldest

# Larger results cost more to keep than to compute again.
_MAX_ENTRY_BYTES = 32 * 2**20
# What a machine keeps in all; the entries that were not read for longest go first.
MAX_CACHE_BYTES = 2 * 2**30
MAX_AGE_S = 30 * 24 * 3600.0
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
        """Outputs from disk or from the model; raises what opening or running it raises.

        Inputs and outputs are of any shape.
        """
        path = self._directory / f"{_digest(self._identity, inputs)}.npz"
        kept = read_kept(path, _read)
        if kept is not None:
            return kept
        outputs = self._model.run(inputs)
        if _is_worth_keeping(outputs):
            named: dict[str, Array] = {_PREFIX + name: array for name, array in outputs.items()}
            keep(path, lambda part: np.savez(part, allow_pickle=False, **named))
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
    found = entries(directory.glob("*.npz"))
    remove_oldest(found, max_bytes=max_bytes, max_age_s=max_age_s, young_s=0.0)


def _digest(identity: str, inputs: Mapping[str, Array]) -> str:
    hasher = hashlib.sha256(identity.encode())
    for name, array in sorted(inputs.items()):
        hasher.update(f"\n{name} {array.dtype} {list(array.shape)}\n".encode())
        hasher.update(bytes_from_array(array))
    return hasher.hexdigest()


def _read(path: Path) -> dict[str, Array]:
    # numpy leaves a file that it cannot read open, so it gets an open one.
    with path.open("rb") as file, np.load(file) as archive:
        return {name.removeprefix(_PREFIX): archive[name] for name in archive.files}


def _is_worth_keeping(outputs: Mapping[str, Array]) -> bool:
    # numpy's files do not keep extension types such as bfloat16 (kind "V").
    is_plain = all(array.dtype.kind in "fiub" for array in outputs.values())
    return is_plain and sum(array.nbytes for array in outputs.values()) <= _MAX_ENTRY_BYTES
