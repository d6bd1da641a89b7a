"""What NaN and Inf do to an engine: in the row that has them, in rows beside it, in later runs.

Replicas join rows of many callers, and the next batch runs in the same buffers. NaN of one caller
reaches another's row through a scale that is taken from a whole batch, and a later run through a
buffer that keeps it where pads are, as 0 x NaN is NaN. So does Inf, also where NaN is cleared.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from compiler_worker.inputs.integer_draws import drawn_role
from compiler_worker.inputs.sampling import Sample, SampleVariant, is_floating
from compiler_worker.measures.comparison import rough_difference
from compiler_worker.proof.claim import Claim, sizes_text
from compiler_worker.proof.repeatability import change
from compiler_worker.references.models import Model
from compiler_worker.references.reference import Reference
from services.contracts.errors import EngineError, InvalidRequestError, ProofError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.recipe import InputRole

_Arrays = Mapping[str, Array]
_USUAL = (SampleVariant.FULL, SampleVariant.RAGGED)
_ALL = slice(None)
_LAST = slice(-1, None)
_BUT_LAST = slice(None, -1)
# By name, what inputs are filled with in turns.
_VALUES = {"NaN": (np.nan,), "Inf": (np.inf, -np.inf)}


@dataclass(frozen=True, kw_only=True)
class NonFiniteCheck:
    """What was found.

    Attributes:
        fault: what NaN or Inf does to other rows or to later runs, in words; "" when nothing.
        notes: how the row that has it is answered, where the model answers it otherwise.
    """

    fault: str = ""
    notes: tuple[str, ...] = ()


def check_nonfinite(
    engine: Model, reference: Reference, claim: Claim, samples: Sequence[Sample]
) -> NonFiniteCheck:
    """Run samples with NaN in their inputs of floats, and then with infinite values.

    How their own row is answered is noted, and no fault: whether NaN means anything, the model's
    own samples say, and where some have NaN it is compared.

    Args:
        engine: whose answers to the same samples as they are are right.
        reference: of the same master; its witness must agree where NaN belongs.
        claim: names the inputs, and the dimension of rows.
        samples: that were compared.
    """
    usual = [s for s in samples if s.variant in _USUAL and all(s.sizes.values())]
    notes: tuple[str, ...] = ()
    for value in _VALUES if usual and _spoilt_inputs(claim) else ():
        check = _check_value(engine, reference, claim, usual, value)
        if check.fault:
            return check
        # An engine that hides one does so with the other.
        notes = notes or check.notes
    return NonFiniteCheck(notes=notes)


def _check_value(
    engine: Model, reference: Reference, claim: Claim, usual: Sequence[Sample], value: str
) -> NonFiniteCheck:
    rows = claim.recipe.batching.batch_dim or ""
    several = [s for s in usual if s.sizes.get(rows, 1) > 1]
    sample = min(several or usual, key=_num_elements)
    try:
        check = _check_row(engine, reference, claim, sample, value)
    except ProofError as error:
        words = f"{value} was not tried, as the model itself fails at it: {error}"
        return NonFiniteCheck(notes=(words,))
    except (EngineError, InvalidRequestError) as error:
        check = NonFiniteCheck(notes=(f"{value} in an input fails the whole run: {error}",))
    if check.fault:
        return check
    try:
        return replace(check, fault=_later(engine, claim, usual, value))
    except (EngineError, InvalidRequestError) as error:
        return NonFiniteCheck(fault=f"after a run with {value} the engine fails: {error}")


def _check_row(
    engine: Model, reference: Reference, claim: Claim, sample: Sample, value: str
) -> NonFiniteCheck:
    """The last row's own answer, and those of all others.

    Raises:
        ProofError: the model does not compute the value.
    """
    spoilt = _spoilt(claim, sample, value, _LAST)
    # The witness first: an index that is made of NaN raises there, and elsewhere may do worse.
    models = [model for model in (reference.witness, reference.model) if model is not None]
    wanted = [model.run(spoilt.inputs) for model in models]
    clean = reference.model.run(sample.inputs)
    if words := _others_differ(claim, spoilt, _declared(claim, wanted[-1]), clean):
        # Masters that take scales from a whole batch, for one.
        words = f"{value} in one row changes others in the model itself: {words}"
        return NonFiniteCheck(notes=(words,))
    clean = _run(engine, sample)
    found = _run(engine, spoilt)
    if words := _others_differ(claim, spoilt, found, clean):
        where = f"bucket {sample.bucket} at {sizes_text(sample.sizes)}"
        return NonFiniteCheck(fault=f"{value} in one row changes others: {where}: {words}")
    floats = filter(is_floating, claim.master.outputs)
    notes = (_row_note(claim, spec, found, wanted) for spec in floats)
    return NonFiniteCheck(notes=tuple(f"{value} in an input {note}" for note in notes if note))


def _others_differ(claim: Claim, spoilt: Sample, found: _Arrays, clean: _Arrays) -> str:
    """The first output that differs in a row that is not spoilt, in words."""
    inputs = _rows_of(claim, claim.master.inputs, spoilt.inputs, _BUT_LAST)
    specs = [s for s in claim.master.outputs if claim.recipe.batching.batch_dim in s.shape]
    here, there = (_rows_of(claim, specs, arrays, _BUT_LAST) for arrays in (found, clean))
    words = (rough_difference(spec, claim.recipe, inputs, here, there) for spec in specs)
    return next(filter(None, words), "")


def _declared(claim: Claim, outputs: _Arrays) -> dict[str, Array]:
    """A reference's outputs in the types of the master's: its floats are float64."""
    floats = {
        s.name: NUMPY_FROM_DATATYPE[s.datatype] for s in filter(is_floating, claim.master.outputs)
    }
    return {name: array.astype(floats.get(name, array.dtype)) for name, array in outputs.items()}


def _row_note(claim: Claim, spec: TensorSpec, found: _Arrays, wanted: Sequence[_Arrays]) -> str:
    """How the spoilt row is answered, where reference and witness agree on another answer."""
    arrays = [_rows_of(claim, [spec], each, _LAST)[spec.name] for each in (found, *wanted)]
    if len({array.shape for array in arrays}) > 1:
        # What a model selects, by NaN too, decides how many there are.
        return f"changes the shape of output '{spec.name}'"
    own, *models = (np.isnan(array.astype(np.float64)) for array in arrays)
    is_nan = np.logical_and.reduce(models)
    is_number = ~np.logical_or.reduce(models)
    if (is_nan & ~own).any():
        return f"gives numbers in output '{spec.name}', and NaN in the model"
    if (is_number & own).any():
        return f"gives NaN in output '{spec.name}', and numbers in the model"
    return ""


def _later(engine: Model, claim: Claim, usual: Sequence[Sample], value: str) -> str:
    """Whether the smallest sample of a bucket is answered otherwise after the largest is spoilt."""
    for bucket in claim.buckets:
        own = sorted((s for s in usual if s.bucket == bucket.label), key=_num_elements)
        if not own:
            continue
        before = _run(engine, own[0])
        # That run may fail, as its caller's inputs are what is wrong; the next one may not.
        with suppress(EngineError, InvalidRequestError):
            _run(engine, _spoilt(claim, own[-1], value, _ALL))
        after = _run(engine, own[0])
        if words := change(claim.master, claim.recipe, own[0], after, before):
            return f"after a run with {value}, {words}"
    return ""


def _spoilt_inputs(claim: Claim) -> list[TensorSpec]:
    """Inputs of floats that have rows, or all of them where requests are not joined."""
    rows = claim.recipe.batching.batch_dim
    return [
        spec
        for spec in claim.master.inputs
        if is_floating(spec)
        and (rows is None or rows in spec.shape)
        and drawn_role(claim.master, claim.recipe, spec.name) is not InputRole.MASK
    ]


def _spoilt(claim: Claim, sample: Sample, value: str, place: slice) -> Sample:
    """A copy with a value in some rows; everywhere in inputs without rows."""
    inputs = {name: array.copy() for name, array in sample.inputs.items()}
    for spoilt in _rows_of(claim, _spoilt_inputs(claim), inputs, place).values():
        spoilt[...] = np.resize(_VALUES[value], spoilt.shape)
    return replace(sample, inputs=inputs)


def _rows_of(
    claim: Claim, specs: Sequence[TensorSpec], arrays: _Arrays, place: slice
) -> dict[str, Array]:
    """Views of some rows; the whole of what has no rows."""
    rows = claim.recipe.batching.batch_dim
    axes = {s.name: s.shape.index(rows) if rows in s.shape else None for s in specs}
    return {
        name: arrays[name] if axis is None else arrays[name][(_ALL,) * axis + (place,)]
        for name, axis in axes.items()
    }


def _run(engine: Model, sample: Sample) -> dict[str, Array]:
    """Copies of the answer: its memory may be the engine's, which runs again."""
    return {name: array.copy() for name, array in engine.run(sample.inputs).items()}


def _num_elements(sample: Sample) -> int:
    return sum(array.size for array in sample.inputs.values())
