"""What `smelt why` says of a proof."""

from services.contracts.model.manifest import OutputCheck, Proof, ProofOutcome
from services.contracts.selection.proof_checks import PowerCheck
from services.controller.explain.proof_words import proof_words


def proof(**more: object) -> Proof:
    """A proof that passed."""
    plain = {"outcome": ProofOutcome.PASSED, "reference": "float64", "created_at": ""}
    return Proof.model_validate(plain | more)


def check(batch: int) -> OutputCheck:
    return OutputCheck(
        bucket="b", sizes={"batch": batch}, output="y", rel_l2=0, max_abs=0, cosine_distance=0
    )


def test_samples_and_sizes_are_counted() -> None:
    words = proof_words(
        proof(
            samples={"full": 3, "left_padded": 1, "given": 2}, checks=[check(1), check(1), check(2)]
        )
    )
    assert words == (
        "proven on 4 drawn samples (3 full, 1 left padded) and 2 runs of the model's own samples, "
        "of 2 sizes, against float64"
    )


def test_a_proof_that_failed_proves_nothing() -> None:
    failed = proof(outcome=ProofOutcome.FAILED, samples={"full": 1}, checks=[check(1)])
    assert proof_words(failed).startswith("compared on 1 drawn samples (1 full)")


def test_blindness_is_named_with_whether_it_is_accepted() -> None:
    power = PowerCheck(
        output="y", refused=("a", "b"), tightened=("c",), blind=("d", "e"), accepted=("d",)
    )
    assert proof_words(proof(power=[power])) == (
        "output 'y': 3 of 5 kinds of faults would be refused, blind to 'd', 'e' ('e' not accepted)"
    )
    accepted = power.model_copy(update={"accepted": ("d", "e")})
    assert proof_words(proof(power=[accepted])).endswith("blind to 'd', 'e' (accepted)")


def test_what_was_not_tried_is_named() -> None:
    power = PowerCheck(output="y", refused=("a", "b"), unchanged=("c",))
    assert proof_words(proof(power=[power])) == (
        "output 'y': 2 of 2 kinds of faults would be refused, not tried, as they change none of "
        "these answers: 'c'"
    )


def test_what_was_left_out_is_told() -> None:
    assert proof_words(proof(notes=["the model's samples are not compared: none fits"])) == (
        "the model's samples are not compared: none fits"
    )


def test_an_older_proof_recorded_neither() -> None:
    assert proof_words(proof()) == ""
