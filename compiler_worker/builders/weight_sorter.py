"""Which weights of compiled code are the master's own, and which an engine has to bring."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY
from services.engines.artifacts.artifact_index import WeightRef
from services.engines.artifacts.artifact_weights import MasterWeights, axes_in_memory, converted
from services.engines.torch_runtime.torch_arrays import array_over


class WeightSorter:
    """Decides for each weight whether the master has it; keeps those that it has not.

    Weights are known by their values after the cast: typing a graph may rename them.
    """

    def __init__(self, master_path: Path) -> None:
        self._master = MasterWeights(master_path)
        self._names: dict[torch.dtype, dict[_Content, str]] = {}
        self._own: dict[str, torch.Tensor] = {}

    def ref(self, name: str, tensor: torch.Tensor, parts: Sequence[torch.Tensor] = ()) -> WeightRef:
        """The reference for one weight argument.

        Args:
            name: of the argument in the exported program.
            tensor: its values, of any shape, on any device.
            parts: the weights that it joins along its last axis; empty where it is one.
        """
        values = tensor.detach().cpu()
        datatype = DATATYPE_FROM_NUMPY[array_over(values).dtype]
        joined = tuple(self._in_master(part.detach().cpu()) for part in parts)
        if joined and None not in joined:
            refs = tuple(ref for ref in joined if ref is not None)
            return WeightRef(name=name, datatype=datatype, is_in_master=True, parts=refs)
        if known := self._in_master(values):
            return known
        # With the digest: buckets are exported one by one, and may call different values the same.
        key = f"{name}-{_content(values).sha256}"
        self._own[key] = values
        return WeightRef(name=key, datatype=datatype, is_in_master=False)

    def _in_master(self, values: torch.Tensor) -> WeightRef | None:
        initializer = self._names_of(values.dtype).get(_content(values))
        if initializer is None:
            return None
        datatype = DATATYPE_FROM_NUMPY[array_over(values).dtype]
        order = () if values.is_contiguous() else axes_in_memory(values)
        return WeightRef(name=initializer, datatype=datatype, is_in_master=True, order=order)

    def save(self, path: Path) -> None:
        """Write the engine's own constants; no file when there are none."""
        if self._own:
            torch.save(self._own, path)

    def _names_of(self, dtype: torch.dtype) -> dict["_Content", str]:
        """The master's initializers by what they hold when they are cast to a type."""
        if dtype not in self._names:
            weights = ((name, self._master.array(name)) for name in self._master)
            self._names[dtype] = {_content(converted(w, dtype)): name for name, w in weights}
        return self._names[dtype]


class _Content(NamedTuple):
    shape: tuple[int, ...]
    sha256: str


def _content(tensor: torch.Tensor) -> _Content:
    array = array_over(tensor.contiguous())
    return _Content(tuple(tensor.shape), hashlib.sha256(array.tobytes()).hexdigest())
