"""How much a sabotage changes what a model computes: asked of float64, without the proof's bounds.

The rule: a sabotage does not apply to a model where over many draws (three seeds that no proof
uses, and samples that are given) its answers in float64 differ from the right ones by no more
than the right engine of fp32 does; of what it changes, root mean square and the largest are
both in spreads of the output's last axis. It is within the rounding of a precision where they
differ by no more than twice what the right engine of that precision does (a proof that knows
nothing else tells an engine from another that is more than twice as far off), and of any but
fp32 by less than the hundredth of a spread that proofs call unnoticed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.comparison import compared_in
from compiler_worker.references.models import Model
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How far answers lie from the right ones, over all draws and outputs.

    Attributes:
        mean: root mean square, in spreads; of integers and strings the share that differs.
        largest: of any element.
    """

    mean: float = 0.0
    largest: float = 0.0

    def is_within(self, other: "Effect", factor: float = 1.0) -> bool:
        """Whether nothing is more than so many times as far off as in the other."""
        return self.mean <= factor * other.mean and self.largest <= factor * other.largest

    def union(self, other: "Effect") -> "Effect":
        """The larger of each."""
        return Effect(mean=max(self.mean, other.mean), largest=max(self.largest, other.largest))


# Of the right engine's own error.
ROUNDING_FACTOR = 2.0
NOTICED = 0.01
FAILED = Effect(mean=np.inf, largest=np.inf)


def answers(model: Model, samples: Sequence[Sample]) -> list[dict[str, Array]]:
    """What a model says to each sample, in this order."""
    return [dict(model.run(sample.inputs)) for sample in samples]


def effect(
    found: Sequence[Mapping[str, Array]],
    right: Sequence[Mapping[str, Array]],
    samples: Sequence[Sample],
    master: MasterRecord,
    recipe: Recipe,
) -> Effect:
    """How far one list of answers lies from another.

    Args:
        found: of an engine, or of a sabotaged float64 model.
        right: of the float64 model.
        samples: which both were asked.
        master: names the outputs.
        recipe: says which positions count.
    """
    total = Effect()
    for spec in master.outputs:
        pairs = list(zip(found, right, samples, strict=True))
        if any(f[spec.name].shape != r[spec.name].shape for f, r, _ in pairs):
            return FAILED
        keeps = [compared_in(spec, recipe, s.inputs, r[spec.name]) for _, r, s in pairs]
        width = spec.shape[-1] if len(spec.shape) > 1 and isinstance(spec.shape[-1], int) else 1
        both = (_rows([each[spec.name] for each in many], keeps, width) for many in (found, right))
        total = total.union(_distance(*both))
    return total


def _rows(arrays: Sequence[Array], keeps: Sequence[Array], width: int) -> Array:
    kept = [array[keep].reshape(-1, width) for array, keep in zip(arrays, keeps, strict=True)]
    return np.concatenate(kept)


def _distance(found: Array, right: Array) -> Effect:
    if right.dtype.kind in "biuO":
        share = float((found != right).mean()) if right.size else 0.0
        return Effect(mean=share, largest=float(share > 0))
    found, right = found.astype(np.float64), right.astype(np.float64)
    is_odd = ~np.isfinite(found) | ~np.isfinite(right)
    if not np.array_equal(found[is_odd], right[is_odd], equal_nan=True):
        return FAILED
    spread = np.where(is_odd, 0.0, right).std(axis=0) + 1e-30
    error = np.where(is_odd, 0.0, found - right) / spread
    return Effect(mean=float(np.sqrt((error**2).mean())), largest=float(np.abs(error).max()))
