"""A model that is asked the same again and again, and computes it once."""

import hashlib
from collections.abc import Mapping

from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array, bytes_from_array


class Remembered:
    """Answers from memory; each answer is the caller's own copy."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[bytes, dict[str, Array]] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs; raises what the model raises."""
        hasher = hashlib.sha256()
        for name, array in sorted(inputs.items()):
            hasher.update(f"{name} {array.dtype} {array.shape}".encode())
            hasher.update(bytes_from_array(array))
        key = hasher.digest()
        if key not in self._known:
            self._known[key] = dict(self._model.run(inputs))
        return {name: array.copy() for name, array in self._known[key].items()}
