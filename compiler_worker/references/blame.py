"""Which is wrong where the importer and ONNX Runtime differ: ONNX's own implementation decides.

Where it sides with ONNX Runtime the importer is wrong: engines that it made are refused, and all
others are compared without it; so where it fails at inputs that ONNX Runtime computes. Where it
sides with the importer, ONNX Runtime is no witness of this master. Where it sides with neither,
or cannot run the graph, nothing is proven.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.measures.distance import compare
from compiler_worker.proof.claim import Claim, sizes_text
from compiler_worker.references.agreement import (
    Disagreement,
    Errors,
    disagreement,
    is_agreement,
    untrusted,
)
from compiler_worker.references.models import Model
from compiler_worker.references.reference import (
    Reference,
    TieBreaker,
    evaluator_name,
)
from services.contracts.errors import ProofError, UnsupportedGraphError
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array


def agreed(
    reference: Reference,
    claim: Claim,
    samples: Sequence[Sample],
    errors: Mapping[str, Errors],
    typical: Mapping[str, float],
) -> Reference:
    """The reference that a proof may trust: this one, or what is left without who is wrong.

    Args:
        reference: as it was opened.
        claim: of the engine.
        samples: at which reference and witness have to agree.
        errors: of eager float32, by output.
        typical: sizes of elements, by output.

    Raises:
        ProofError: the engine is made by an importer that is wrong, or it is unknown which is.
    """
    found = disagreement(reference, claim.master, claim.recipe, samples, errors, typical)
    if found is None:
        return reference
    if reference.tie_breaker is None:
        raise untrusted(reference, found, "tie-breaker unavailable: no third implementation")
    third, answer = _asked(reference, reference.tie_breaker, found)
    by_witness = _fault(reference.witness, answer, found, claim)
    by_import = _fault(reference.model, answer, found, claim)
    if by_import == by_witness == found.fault:  # all answer alike: the reference is no number
        raise ProofError(
            f"reference check failed, which is not the engine's fault ({reference.name}; "
            f"{evaluator_name()} answers the same): {found.words}"
        )
    if by_import and not by_witness:
        return _without_import(reference, reference.tie_breaker, found)
    # With neither of them, or with both: two that differ by just more than the bound have a third
    # between them.
    if by_import or not by_witness:
        sides = (
            f"{by_import or 'agrees'} from the import, {by_witness or 'agrees'} from the witness"
        )
        raise untrusted(
            reference, found, f"tie-breaker {evaluator_name()} is inconclusive: {sides}"
        )
    confirmed = _with_witness(reference, third, found)
    found = disagreement(confirmed, claim.master, claim.recipe, samples, errors, typical)
    if found is not None:
        raise untrusted(confirmed, found)
    return confirmed


def without_import(reference: Reference, sample: Sample, failure: ProofError) -> Reference | None:
    """What is left where the import fails at a sample and the witness answers; else None.

    Args:
        reference: whose import failed.
        sample: what it failed at.
        failure: its error.

    Raises:
        ProofError: the engine is made by the importer.
    """
    if reference.tie_breaker is None or reference.witness is None:
        return None
    try:
        reference.witness.run(sample.inputs)
    except ProofError:
        return None
    at = f"{sample.bucket} at {sizes_text(sample.sizes)}"
    reason = f"the import fails, {at}, where {reference.witness_name} answers: {failure}"
    return _left(reference.tie_breaker, reason)


def _asked(
    reference: Reference, tie_breaker: TieBreaker, found: Disagreement
) -> tuple[Model, Mapping[str, Array]]:
    """The third, and its answer to the sample in question."""
    try:
        third = tie_breaker.open_third()
        return third, third.run(found.sample.inputs)
    except ProofError as error:
        raise untrusted(reference, found, f"tie-breaker unavailable: {error}") from error


def _without_import(
    reference: Reference, tie_breaker: TieBreaker, found: Disagreement
) -> Reference:
    reason = (
        f"the importer is wrong: {found.words}, between its graph and {reference.witness_name}, "
        f"with which {evaluator_name()} agrees{_first_difference(tie_breaker, found.sample)}"
    )
    return _left(tie_breaker, reason)


def _left(tie_breaker: TieBreaker, reason: str) -> Reference:
    if tie_breaker.is_imported:
        raise ProofError(f"{reason}; this engine is made of the same import")
    return tie_breaker.without_import(reason)


def _with_witness(reference: Reference, third: Model, found: Disagreement) -> Reference:
    words = f"{reference.witness_name} is wrong: {found.words}, between it and both others"
    return replace(
        reference,
        name=f"{reference.name}; {evaluator_name()} is the witness in its place, as {words}",
        witness=third,
        tie_breaker=None,
    )


def _fault(
    model: Model | None, answer: Mapping[str, Array], found: Disagreement, claim: Claim
) -> str:
    """How far a third's answer is from that of a model, "" where they agree."""
    assert model is not None
    inputs = found.sample.inputs
    wanted = model.run(inputs)
    size = found.typical
    result = compare_output(found.spec, claim.recipe, inputs, answer, wanted, found.allowed, size)
    return "" if is_agreement(found.spec, result, wanted) else result.fault


def _first_difference(tie_breaker: TieBreaker, sample: Sample) -> str:
    """The first node after which the importer computes something else, "" where none is found."""
    try:
        wanted = tie_breaker.open_third().values(sample.inputs)
        nodes = [(name, words) for name, words in _nodes(tie_breaker) if name in wanted]
        found = tie_breaker.open_values([name for name, _ in nodes]).run(sample.inputs)
    except (ProofError, UnsupportedGraphError):
        return ""
    # Far more than rounding, which a graph may make much of on its way.
    allowed = DEFAULT_TOLERANCES[Precision.FP16]
    for name, words in nodes:
        fault = compare(found[name], wanted[name], allowed, has_batch_axis=False).fault
        if fault and np.isfinite(wanted[name]).any():
            return f"; first after {words}: {fault}"
    return ""


def _nodes(tie_breaker: TieBreaker) -> Iterator[tuple[str, str]]:
    """Each value that a node of the master gives, with the node in words."""
    import onnx

    for node in onnx.load(tie_breaker.master_path, load_external_data=False).graph.node:
        for name in node.output:
            yield name, f"{node.op_type} node '{node.name or node.output[0]}'"
