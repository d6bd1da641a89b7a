"""Inputs with the right answers, kept with a model version as one small .npz file.

Arrays are named `NUMBER input NAME` and `NUMBER output NAME`. Types that numpy's files do not know
(bfloat16) are kept as float32, which holds them exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import DATATYPE_FROM_NUMPY, NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe, Tolerance

_Arrays = Mapping[str, Array]
# A divisor where everything wanted is zero.
_NO_SIZE = 1.0


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """One run: inputs, and what the witness answered."""

    inputs: _Arrays
    outputs: _Arrays

    @property
    def num_bytes(self) -> int:
        """Size of all arrays."""
        return sum(a.nbytes for arrays in (self.inputs, self.outputs) for a in arrays.values())


def write_answers(path: Path, answers: Sequence[KeptAnswer]) -> None:
    """Write the file; equal answers give equal bytes."""
    # numpy calls ml_dtypes' bfloat16 kind V, and would write it as raw bytes.
    named = {
        f"{number} {role} {name}": array.astype(np.float32) if array.dtype.kind == "V" else array
        for number, answer in enumerate(answers)
        for role, arrays in (("input", answer.inputs), ("output", answer.outputs))
        for name, array in arrays.items()
    }
    np.savez_compressed(path, allow_pickle=False, **named)


def read_answers(path: Path, master: MasterRecord) -> list[KeptAnswer]:
    """The answers of a file, inputs in the master's own types."""
    with np.load(path) as archive:
        count = len({name.split(" ", 1)[0] for name in archive.files})
        return [
            KeptAnswer(
                inputs={
                    spec.name: archive[f"{number} input {spec.name}"].astype(
                        NUMPY_FROM_DATATYPE[spec.datatype], copy=False
                    )
                    for spec in master.inputs
                },
                outputs={
                    spec.name: archive[f"{number} output {spec.name}"] for spec in master.outputs
                },
            )
            for number in range(count)
        ]


def fault_of(
    found: _Arrays,
    kept: KeptAnswer,
    outputs: Iterable[TensorSpec],
    recipe: Recipe,
    allowed: Mapping[str, Tolerance],
) -> str:
    """The first output that is not as it was kept, in words; "" when all are.

    Args:
        found: what a model answers to the kept inputs, of any shape.
        kept: what it should answer.
        outputs: their names and types.
        recipe: says which positions of an output count.
        allowed: bounds by output.
    """
    for spec in outputs:
        output = recipe.outputs.get(spec.name)
        valid = kept.inputs[output.valid_where] if output and output.valid_where else None
        fault = _fault(found[spec.name], kept.outputs[spec.name], allowed[spec.name], spec, valid)
        if fault:
            shapes = {name: list(array.shape) for name, array in kept.inputs.items()}
            return f"output '{spec.name}' at {shapes}: {fault}"
    return ""


def _fault(
    found: Array, wanted: Array, allowed: Tolerance, spec: TensorSpec, valid: Array | None
) -> str:
    datatype = DATATYPE_FROM_NUMPY.get(found.dtype, str(found.dtype))
    if (datatype, found.shape) != (spec.datatype, wanted.shape):
        return f"{datatype} {list(found.shape)} found, {spec.datatype} {list(wanted.shape)} wanted"
    if valid is not None:
        found = found[valid != 0]
        wanted = wanted[valid != 0]
    if wanted.dtype.kind in "biu":
        return _integer_fault(found, wanted, allowed.agreement or 1.0)
    return _float_fault(found.astype(np.float64), wanted.astype(np.float64), allowed)


def _integer_fault(found: Array, wanted: Array, least_share: float) -> str:
    num_wrong = int(np.count_nonzero(found != wanted))
    share = 1 - num_wrong / max(wanted.size, 1)
    if share >= least_share:
        return ""
    return (
        f"{num_wrong} of {wanted.size} elements differ: agreement {share:.4f} found, "
        f"{least_share:.4f} wanted"
    )


def _float_fault(found: Array, wanted: Array, allowed: Tolerance) -> str:
    """Over the whole output at once: a bound for faults, where a proof's are for engines."""
    is_number = np.isfinite(wanted)
    is_same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    if num_odd := int(np.count_nonzero(~is_same & ~(is_number & np.isfinite(found)))):
        return f"{num_odd} NaN or Inf values found, 0 allowed"
    error = np.abs(found[is_number] - wanted[is_number])
    wanted = wanted[is_number]
    if not error.size:
        return ""
    rel_l2 = np.linalg.norm(error) / (np.linalg.norm(wanted) or _NO_SIZE)
    max_abs = error.max() / (np.abs(wanted).max() or _NO_SIZE)
    pairs = (("rel_l2", rel_l2, allowed.rel_l2), ("max_abs", max_abs, allowed.max_abs))
    # Not `f > b`: NaN has to count as a fault.
    return "; ".join(f"{n} {f:.2e} found, {b:.2e} allowed" for n, f, b in pairs if not f <= b)
