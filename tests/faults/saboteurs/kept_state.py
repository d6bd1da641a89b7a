"""Engines whose buffers, graphs or shapes are of another call, or larger than the request."""

from collections.abc import Callable, Mapping

import numpy as np

from compiler_worker.references.models import Model
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from tests.faults.saboteurs.engine_faults import ENGINE_FAULTS, EngineFault, Interface

Arrays = Mapping[str, Array]


class _Former:
    """Answers what the former call of the same shapes was answered."""

    def __init__(self, engine: Model, _: Interface) -> None:
        self._engine = engine
        self._former: dict[str, Array] = {}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The former answer, where it has the shapes of this one."""
        answer = dict(self._engine.run(inputs))
        former, self._former = self._former, answer
        shapes = {name: array.shape for name, array in answer.items()}
        is_same = shapes == {name: array.shape for name, array in former.items()}
        return dict(former) if is_same else answer


class _Replayed:
    """A graph of calls that was recorded at the first call of each shape, and never fed again."""

    def __init__(self, engine: Model, _: Interface) -> None:
        self._engine = engine
        self._kept: dict[str, dict[str, Array]] = {}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """What the first call of these shapes was answered."""
        shapes = str([array.shape for array in inputs.values()])
        if shapes not in self._kept:
            self._kept[shapes] = dict(self._engine.run(inputs))
        return self._kept[shapes]


class _StaleRows:
    """An output buffer that is as large as the largest batch, and written one row too few."""

    def __init__(self, engine: Model, _: Interface) -> None:
        self._engine = engine
        self._buffers: dict[str, Array] = {}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The last row of several is what an earlier call left there."""
        answer = {name: array.copy() for name, array in self._engine.run(inputs).items()}
        for name, array in answer.items():
            former = self._buffers.get(name)
            self._buffers[name] = array.copy()
            if former is None or former.shape[1:] != array.shape[1:]:
                continue
            last = len(array) - 1
            if 0 < last < len(former):
                array[last] = former[last]
        return answer


Fill = Callable[[str, Array, Array | None], Array]


class _RoundedUp:
    """Sizes are rounded up to powers of two; `fill` says what stands in what was added."""

    def __init__(self, engine: Model, interface: Interface, fill: Fill) -> None:
        self._engine, self._interface, self._fill = engine, interface, fill
        self._buffers: dict[str, Array] = {}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The engine's answer at larger sizes, cut to those of the request."""
        sizes: dict[str, int] = {}
        for spec in self._interface.master.inputs:
            sizes |= _sizes(spec, inputs[spec.name])
        padded = {spec.name: self._padded(spec, inputs) for spec in self._interface.master.inputs}
        answer = self._engine.run(padded)
        return {
            spec.name: _cut(spec, answer[spec.name], sizes)
            for spec in self._interface.master.outputs
        }

    def _padded(self, spec: TensorSpec, inputs: Arrays) -> Array:
        array = inputs[spec.name]
        shape = tuple(
            _next_power(size) if isinstance(dim, str) and dim != "batch" else size
            for dim, size in zip(spec.shape, array.shape, strict=True)
        )
        blank = np.zeros(shape, array.dtype)
        kind = "m" if self._interface.is_mask(spec.name) else array.dtype.kind
        former = self._buffers.get(spec.name)
        usable = former if former is not None and former.shape == shape else None
        filled = self._fill(kind, blank, usable)
        filled[tuple(slice(size) for size in array.shape)] = array
        self._buffers[spec.name] = filled.copy()
        return filled


def _sizes(spec: TensorSpec, array: Array) -> dict[str, int]:
    pairs = zip(spec.shape, array.shape, strict=True)
    return {dim: size for dim, size in pairs if isinstance(dim, str)}


def _cut(spec: TensorSpec, array: Array, sizes: Mapping[str, int]) -> Array:
    pairs = zip(spec.shape, array.shape, strict=True)
    return array[tuple(slice(sizes.get(str(dim), size)) for dim, size in pairs)].copy()


def _next_power(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def _unmasked(kind: str, blank: Array, _: Array | None) -> Array:
    return blank + (1 if kind == "m" else 0)


def _not_cleared(kind: str, blank: Array, former: Array | None) -> Array:
    return blank if former is None else former.copy()


def _rounded(fill: Fill) -> EngineFault:
    return lambda engine, interface: _RoundedUp(engine, interface, fill)


STATE_FAULTS: dict[str, EngineFault] = {
    "former answer": _Former,
    "first answer of a shape": _Replayed,
    "last row of an earlier call": _StaleRows,
    "sizes rounded up, pads unmasked": _rounded(_unmasked),
    "sizes rounded up, pads not cleared": _rounded(_not_cleared),
}
FAULTS_OF_ENGINES: dict[str, EngineFault] = {**ENGINE_FAULTS, **STATE_FAULTS}
