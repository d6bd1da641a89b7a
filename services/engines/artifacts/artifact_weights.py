"""Weights of an artifact, from the master where they are its own, shared by all buckets.

A weight is of any shape.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from services.contracts.kserve.tensors import Array
from services.engines.artifacts.artifact_index import CONSTANTS, WeightRef
from services.engines.torch_runtime.torch_arrays import tensor_from_array, torch_dtype


class MasterWeights:
    """Initializers of the master by name, read when they are asked for."""

    def __init__(self, master_path: Path) -> None:
        import onnx

        # External data stays on the disk until it is asked for: it may be gigabytes.
        model = onnx.load(master_path, load_external_data=False)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._folder = str(master_path.parent)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def array(self, name: str) -> Array:
        """The initializer's values, external data read from beside the master."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self._tensors[name], base_dir=self._folder)


class WeightTable:
    """Tensors on one device; each is read and moved once, however many buckets use it."""

    def __init__(self, master: MasterWeights, own: Mapping[str, torch.Tensor], device: str) -> None:
        """Nothing is read yet.

        Args:
            master: initializers that the engine shares with its master.
            own: tensors that the engine's folder has, by name.
            device: torch's name of it, as "cuda:0".
        """
        self._master = master
        self._own = own
        self._device = device
        self._loaded: dict[WeightRef, torch.Tensor] = {}

    @classmethod
    def open(cls, directory: Path, master_path: Path, device: str) -> "WeightTable":
        """Of an engine's folder and its master; nothing of the master is read yet.

        Args:
            directory: the engine's files.
            master_path: ONNX file whose initializers are the shared weights.
            device: torch's name of it, as "cuda:0".
        """
        path = directory / CONSTANTS
        # Tensors alone: a pickle from the store could run its writer's code.
        own = torch.load(path, weights_only=True) if path.exists() else {}
        return cls(MasterWeights(master_path), own, device)

    def tensor(self, ref: WeightRef) -> torch.Tensor:
        """The tensor that an artifact takes for this argument."""
        if ref not in self._loaded:
            self._loaded[ref] = self._read(ref).to(self._device)
        return self._loaded[ref]

    def _read(self, ref: WeightRef) -> torch.Tensor:
        if not ref.is_in_master:
            return self._own[ref.name]
        # Joined anew, so that an engine need not hold a copy of weights that the master has.
        if ref.parts:
            return torch.cat([self._read(part) for part in ref.parts], dim=-1)
        weight = converted(self._master.array(ref.name), torch_dtype(ref.datatype))
        return _laid_out(weight, ref.order) if ref.order else weight


def converted(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that owns the array's values in another type; build and load must agree on it."""
    return tensor_from_array(array).to(dtype, copy=True)


def axes_in_memory(tensor: torch.Tensor) -> tuple[int, ...]:
    """The axes of a dense tensor, from the outermost in memory to the innermost."""
    steps = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda axis: -steps[axis]))


def _laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    # Compiled code has strides built in: same shape and values, in that order of memory.
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)
