"""Engines that are right but for one thing: what they read, write, keep or return.

B = batch (the first axis of whatever has it).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import InputRole, Recipe

Arrays = Mapping[str, Array]
Change = Callable[[dict[str, Array], "Interface"], dict[str, Array]]
FP16_MAX = 65_504.0


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What a fault may know of the model whose engine it spoils."""

    master: MasterRecord
    recipe: Recipe

    def is_mask(self, name: str) -> bool:
        """Whether an input marks positions."""
        return drawn_role(self.master, self.recipe, name) is InputRole.MASK


class Spoilt:
    """An engine whose inputs or outputs are changed on their way."""

    def __init__(
        self,
        engine: Model,
        interface: Interface,
        inputs: Change = lambda arrays, _: arrays,
        outputs: Change = lambda arrays, _: arrays,
    ) -> None:
        self._engine, self._interface = engine, interface
        self._inputs, self._outputs = inputs, outputs

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """The engine's answer to other inputs, or another answer."""
        given = self._inputs(dict(inputs), self._interface)
        # The reference's answers are cached: what changes them in place changes a copy.
        answer = {name: array.copy() for name, array in self._engine.run(given).items()}
        return self._outputs(answer, self._interface)


EngineFault = Callable[[Model, Interface], Model]


def reads(change: Callable[[Array], Array], kinds: str) -> EngineFault:
    """Inputs of some kinds (numpy's letters, `m` for masks) are read as others."""

    def changed(arrays: dict[str, Array], interface: Interface) -> dict[str, Array]:
        chosen = {
            name: change(array).astype(array.dtype)
            for name, array in arrays.items()
            if ("m" if interface.is_mask(name) else array.dtype.kind) in kinds and array.size
        }
        return arrays | chosen

    return lambda engine, interface: Spoilt(engine, interface, inputs=changed)


def writes(change: Callable[[Array], Array], kinds: str = "f") -> EngineFault:
    """Outputs of some kinds are others."""

    def changed(arrays: dict[str, Array], _: Interface) -> dict[str, Array]:
        chosen = {
            name: change(array).astype(array.dtype)
            for name, array in arrays.items()
            if array.dtype.kind in kinds and array.size
        }
        return arrays | chosen

    return lambda engine, interface: Spoilt(engine, interface, outputs=changed)


def truncated(array: Array) -> Array:
    """As bfloat16 with its last bits cut off, not rounded."""
    bits = array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def _left_filled(mask: Array) -> Array:
    """All ones where the first positions are not valid."""
    is_left = mask[..., :1] == 0
    return np.where(is_left, 1, mask)


def _tail_zero(tile: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        flat = array.reshape(-1).copy()
        flat[flat.size - flat.size % tile :] = 0
        return flat.reshape(array.shape)

    return change


def _input_tail_zero(tile: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        size = array.shape[-1]
        copy = array.copy()
        if size > tile:
            copy[..., size - size % tile :] = 0
        return copy

    return change


def _last_column(array: Array, factor: float) -> Array:
    axis = min(1, array.ndim - 1)
    last = np.arange(array.shape[axis]) == array.shape[axis] - 1
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.where(last.reshape(shape), factor * array, array)


def _noise(array: Array) -> Array:
    seed = int(np.abs(array.astype(np.float64)).sum() * 1e3) % 2**32
    return np.random.default_rng(seed).standard_normal(array.shape) * array.std() + array.mean()


def _by_length(array: Array) -> Array:
    """Longer samples are shifted more: a third of the spread where there are a thousand values."""
    return array + array.std() * min(array.size / 1024, 1.0) / 3


def _mean_only(array: Array) -> Array:
    return np.broadcast_to(array.mean(axis=0, keepdims=True), array.shape)


def _rounded_weakly(array: Array) -> Array:
    return array.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


_ALL_KINDS = "fiuObV"
ENGINE_FAULTS: dict[str, EngineFault] = {
    "absolute inputs": reads(np.abs, "f"),
    "inputs clipped to 0..1": reads(lambda x: np.clip(x, 0, 1), "f"),
    "inputs clipped to -3..3": reads(lambda x: np.clip(x, -3, 3), "f"),
    "inputs rounded to integers": reads(np.rint, "f"),
    "inputs in fp8": reads(_rounded_weakly, "f"),
    "ids off by one": reads(lambda x: np.maximum(x - 1, 0), "iu"),
    "ids in 8 bits": reads(lambda x: x.astype(np.uint8), "iu"),
    "largest id unknown": reads(lambda x: np.where(x == x.max(), 0, x), "iu"),
    "mask ignored": reads(np.ones_like, "m"),
    "mask all ones on left pads": reads(_left_filled, "m"),
    "mask of the first row": reads(lambda x: np.broadcast_to(x[:1], x.shape), "m"),
    "mask one too short": reads(lambda x: np.minimum(x, np.roll(x, -1, axis=-1)), "m"),
    "batch rows swapped": writes(lambda y: y[::-1], _ALL_KINDS),
    "last row repeated": writes(lambda y: np.broadcast_to(y[-1:], y.shape), _ALL_KINDS),
    "first row repeated": writes(lambda y: np.broadcast_to(y[:1], y.shape), _ALL_KINDS),
    "columns permuted": writes(lambda y: np.roll(y, 1, axis=min(1, y.ndim - 1)), _ALL_KINDS),
    "sign of a column flipped": writes(lambda y: _last_column(y, -1.0)),
    "a column zero": writes(lambda y: _last_column(y, 0.0)),
    "a column 30 % off": writes(lambda y: _last_column(y, 1.3)),
    "all zero": writes(np.zeros_like, "fiu"),
    "mean of the rows": writes(_mean_only),
    "noise of the same scale": writes(_noise),
    "2 % off": writes(lambda y: y * 1.02),
    "10 % off": writes(lambda y: y * 1.1),
    "shifted by length": writes(_by_length),
    "saturates at 65504": writes(lambda y: np.clip(y, -FP16_MAX, FP16_MAX)),
    "bf16 truncated twice": writes(lambda y: truncated(truncated(y * 0.999) / 0.999)),
    "NaN becomes 0": writes(np.nan_to_num),
    "ids of outputs off by one": writes(lambda y: y + 1, "iu"),
    "first id in all places": writes(lambda y: np.broadcast_to(y.flat[0], y.shape), "iu"),
    **{f"tail of {n} lost": writes(_tail_zero(n), "fiu") for n in (16, 32, 64)},
    **{f"input's tail of {n} lost": reads(_input_tail_zero(n), "fium") for n in (16, 32, 64)},
}
