"""What the proof of an engine compared, and what it could not, in words."""

from collections.abc import Sequence

from services.contracts.model.manifest import Proof, ProofOutcome
from services.contracts.selection.proof_checks import PowerCheck


def proof_words(proof: Proof) -> str:
    """What was compared, which faults it would show, and what was left out; "" of older proofs."""
    sentences = [_samples(proof), *(_power(check) for check in proof.power), *proof.notes]
    return "; ".join(sentence for sentence in sentences if sentence)


def _samples(proof: Proof) -> str:
    if not proof.samples:
        return ""
    counts = dict(proof.samples)
    num_given = counts.pop("given", 0)
    num_sizes = len({tuple(sorted(check.sizes.items())) for check in proof.checks})
    kinds = ", ".join(f"{num} {variant.replace('_', ' ')}" for variant, num in counts.items())
    given = f"{num_given} runs of the model's own samples" if num_given else "none given with it"
    drawn = f"{sum(counts.values())} drawn samples ({kinds}) and {given}, of {num_sizes} sizes"
    done = "proven" if proof.outcome is ProofOutcome.PASSED else "compared"
    return f"{done} on {drawn}, against {proof.reference}"


def _power(check: PowerCheck) -> str:
    num_seen = len(check.refused) + len(check.tightened)
    total = num_seen + len(check.blind)
    words = f"output '{check.output}': {num_seen} of {total} kinds of faults would be refused"
    if check.blind:
        words += f", blind to {_names(check.blind)} ({_accepted(check)})"
    if check.unchanged:
        words += f", not tried, as they change none of these answers: {_names(check.unchanged)}"
    return words


def _accepted(check: PowerCheck) -> str:
    return f"{_names(check.unaccepted)} not accepted" if check.unaccepted else "accepted"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
