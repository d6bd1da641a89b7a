"""Pure comparison of arrays: the distance of an output to its reference, and what is wrong.

The proof of an engine and the tests of converters and engines use the same functions, so
"equal" means one thing. Everything is computed in float64.

Legend: s = samples (rows along the batch axis), n = all other elements,
d = the last axis (the vector whose direction cosine compares).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import Tolerance

Float64 = NDArray[np.float64]

# A vector this much shorter than the largest one has no meaningful direction or relative
# error: it is measured against the largest.
_VANISHING = 1e-6
# Characters of a string that differs.
_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Distances to a reference, the largest over the samples; see recipe.Tolerance."""

    rel_l2: float = 0.0
    max_abs: float = 0.0
    cosine_distance: float = 0.0

    def union(self, other: "Distance") -> "Distance":
        """The larger of each."""
        return Distance(
            rel_l2=max(self.rel_l2, other.rel_l2),
            max_abs=max(self.max_abs, other.max_abs),
            cosine_distance=max(self.cosine_distance, other.cosine_distance),
        )

    def excess(self, allowed: Tolerance) -> str:
        """Which bounds are broken, as "rel_l2 1.2e-02 found, 1.0e-05 allowed; ...", or ""."""
        pairs = (
            ("rel_l2", self.rel_l2, allowed.rel_l2),
            ("max_abs", self.max_abs, allowed.max_abs),
            ("cosine_distance", self.cosine_distance, allowed.cosine_distance),
        )
        broken = [(name, found, bound) for name, found, bound in pairs if not found <= bound]
        return "; ".join(
            f"{n} {found:.2e} found, {bound:.2e} allowed" for n, found, bound in broken
        )


INFINITELY_FAR = Distance(rel_l2=float("inf"), max_abs=float("inf"), cosine_distance=float("inf"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output against its reference.

    Attributes:
        fault: "" when equal within the bounds, else what was found and what was allowed.
        num_differing: of an output that must be equal in every element, how many are not.
    """

    distance: Distance
    fault: str
    num_differing: int = 0


def compare(
    found: Array,
    wanted: Array,
    allowed: Tolerance,
    *,
    valid: Array | None = None,
    has_batch_axis: bool = True,
    typical: float = 0.0,
) -> Comparison:
    """Compare an output with its reference.

    Args:
        found: the engine's output, of any shape; its datatype must be the spec's, which the
            caller checks.
        wanted: the reference of the same shape; float64 stands for every floating type.
        allowed: bounds for floating outputs; all others must be equal in every element.
        valid: mask over the leading axes, 0 where elements are not compared.
        has_batch_axis: whether the first axis counts samples; else all is one sample.
        typical: size of an element. What is smaller than so large elements is measured against
            them: a logit near zero is no more exact than another one.
    """
    if found.shape != wanted.shape:
        fault = f"shape {list(found.shape)} found, {list(wanted.shape)} wanted"
        return Comparison(distance=INFINITELY_FAR, fault=fault)
    keep = compared_elements(valid, wanted)
    if wanted.size and not keep.any():
        # Any output at all would be equal then.
        return Comparison(distance=INFINITELY_FAR, fault="no position is valid: nothing to compare")
    if not _is_floating(wanted):
        return _compare_exact(found, wanted, keep)
    found_64 = found.astype(np.float64)
    wanted_64 = wanted.astype(np.float64)
    if fault := _non_finite_fault(found_64, wanted_64, keep):
        return Comparison(distance=INFINITELY_FAR, fault=fault)
    usable = keep & np.isfinite(wanted_64)
    if wanted.size and not usable.any():
        # The engine agrees on NaN or Inf everywhere: that proves no number of it.
        fault = (
            "the reference itself is NaN or Inf everywhere; look at the master's weights, give "
            "inputs that must not be negative a range (inputs: {NAME: {low: 0, high: 1}}) and "
            "masks their role (inputs: {NAME: {role: mask}}), or, where a size is 0, begin the "
            "bucket at 1: a mean of nothing is no number"
        )
        return Comparison(distance=INFINITELY_FAR, fault=fault)
    distance = _distance(
        np.where(usable, found_64, 0.0),
        np.where(usable, wanted_64, 0.0),
        has_batch_axis,
        np.where(usable, typical, 0.0),
    )
    return Comparison(distance=distance, fault=distance.excess(allowed))


def _is_floating(array: Array) -> bool:
    # Extension types (bfloat16) report kind "V": whatever else is no integer, bool or string ("O")
    # is floating.
    return array.dtype.kind not in "biuO"


def compared_elements(valid: Array | None, like: Array) -> NDArray[np.bool_]:
    """Which elements of `like`, of any shape, are compared; `valid` has its leading axes."""
    if valid is None:
        return np.ones(like.shape, dtype=np.bool_)
    mask = np.asarray(valid) != 0
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim)), like.shape)


def _compare_exact(found: Array, wanted: Array, keep: NDArray[np.bool_]) -> Comparison:
    num_wrong = int(np.count_nonzero((found != wanted) & keep))
    if not num_wrong:
        return Comparison(distance=Distance(), fault="")
    fault = f"{num_wrong} of {int(keep.sum())} elements differ, 0 allowed"
    if wanted.dtype.kind == "O":
        # Of strings the number means little: a space or a point may be all.
        at = tuple(np.argwhere(np.asarray(found != wanted) & keep)[0])
        fault += f"; the first: {found[at]!r:.{_SHOWN}} found, {wanted[at]!r:.{_SHOWN}} wanted"
    return Comparison(distance=INFINITELY_FAR, fault=fault, num_differing=num_wrong)


def _non_finite_fault(found: Float64, wanted: Float64, keep: NDArray[np.bool_]) -> str:
    """NaN and Inf are right only where the reference has the very same."""
    is_same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    is_odd = ~np.isfinite(found) | ~np.isfinite(wanted)
    num_wrong = int(np.count_nonzero(is_odd & ~is_same & keep))
    return f"{num_wrong} NaN or Inf values found, 0 allowed" if num_wrong else ""


def _distance(found: Float64, wanted: Float64, has_batch_axis: bool, typical: Float64) -> Distance:
    if not wanted.size:
        return Distance()
    num_samples = wanted.shape[0] if has_batch_axis and wanted.ndim else 1
    found_sn, wanted_sn, least_sn = (
        array.reshape(num_samples, -1) for array in (found, wanted, typical)
    )
    error_sn = np.abs(found_sn - wanted_sn)
    lengths = np.maximum(np.linalg.norm(wanted_sn, axis=1), _typical_lengths(least_sn))
    rel_l2_s = np.linalg.norm(error_sn, axis=1) / _scale(lengths)
    largest = np.maximum(np.abs(wanted_sn).max(axis=1), least_sn.max(axis=1))
    max_abs_s = error_sn.max(axis=1) / _scale(largest)
    return Distance(
        rel_l2=float(rel_l2_s.max()),
        max_abs=float(max_abs_s.max()),
        cosine_distance=_cosine_distance(found, wanted, typical),
    )


def _scale(sizes: Any) -> Float64:
    """Divisors without zeros: vanishing sizes count as a little of the largest, or as 1."""
    largest = float(sizes.max())
    scale: Float64 = np.maximum(sizes, _VANISHING * largest if largest else 1.0)
    return scale


def _cosine_distance(found: Float64, wanted: Float64, typical: Float64) -> float:
    if wanted.ndim == 0 or wanted.shape[-1] < 2:
        return 0.0  # A single number has a sign but no direction.
    found_nd, wanted_nd, least_nd = (a.reshape(-1, a.shape[-1]) for a in (found, wanted, typical))
    sizes = np.linalg.norm(wanted_nd, axis=1)
    has_direction = sizes > _VANISHING * sizes.max()
    if not has_direction.any():
        return 0.0
    units = [_unit(vectors[has_direction]) for vectors in (found_nd, wanted_nd)]
    sizes = sizes[has_direction]
    least = _typical_lengths(least_nd[has_direction])
    shortness = sizes / np.maximum(sizes, least)
    # Half the squared chord is 1 - cosine, without the cancellation of computing it so. The same
    # error turns a short vector more: by the square of how much shorter it is.
    return float((((units[0] - units[1]) ** 2).sum(axis=1) / 2 * shortness**2).max())


def _typical_lengths(typical: Float64) -> Float64:
    """Lengths of vectors of typical elements, zeros not counted.

    The fewer elements, the more an error's own length scatters: once in a thousand, as chi-square
    has it, it is 1 + 2.3 / sqrt(n) times the usual one. Of one number that is 3.3.
    """
    num = np.count_nonzero(typical, axis=1)
    lengths: Float64 = np.linalg.norm(typical, axis=1) * (1 + 2.3 / np.sqrt(np.maximum(num, 1)))
    return lengths


def _unit(vectors: Float64) -> Float64:
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Float64 = vectors / np.where(sizes > 0, sizes, 1.0)
    return unit
