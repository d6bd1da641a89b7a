"""What a recipe's tasks and bounds, and ids that tie, let an engine get away with.

The right engine of every model here is proven beside them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from compiler_worker.proof.claim import ProofVerdict
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import (
    Bucket,
    DimRange,
    OutputRecipe,
    RankingTask,
    Recipe,
    Tolerance,
)
from tests.faults.judged import LINEAR, Altered, Answer, Subject, normal


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8])
def test_noise_in_the_coarsest_precision_with_a_ranking_task(
    precision: Precision, tmp_path: Path
) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    recipe = Recipe(
        ranking=RankingTask(output="y", num_queries=16, top_k=5, min_overlap=0.9),
        # As wide as somebody makes them who trusts the task alone.
        tolerances={
            precision: Tolerance(
                rel_l2=10, max_abs=10, cosine_distance=2, column=10, gain=10, agreement=0.1
            )
        },
    )

    def noise(answer: Answer, inputs: Mapping[str, Array]) -> None:
        seed = int(np.abs(inputs["x"]).sum() * 1e6)
        answer["y"] = normal(*answer["y"].shape, seed=seed)

    samples = {"x": normal(80, 8, seed=4)}
    right = subject.judged(subject.engine, recipe, precision, samples=samples)
    assert right.reason == ""
    verdict = subject.judged(Altered(subject.engine, noise), recipe, precision, samples=samples)
    (task,) = verdict.tasks
    assert not task.is_passed
    assert task.value < 0.5
    assert "task top5_overlap:y" in verdict.reason


ARGMAX = """g (float[batch, 8] x) => (int64[batch] ids)
    { scores = MatMul (x, w) best = ArgMax <axis = 1, keepdims = 0> (scores)
      ids = Identity (best) }"""


def near_ties(classes: int) -> Array:
    """Weights of classes of which two and two score nearly the same."""
    weights = normal(8, classes)
    weights[:, 1::2] = weights[:, ::2] * np.float32(1 + 1e-6)
    return weights


@pytest.mark.parametrize("precision", list(Precision))
def test_ids_are_compared_through_their_values(precision: Precision, tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, ARGMAX, w=near_ties(512))

    def name_the_other(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["ids"] = answer["ids"] ^ 1

    def name_the_next(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["ids"] = (answer["ids"] + 2) % 512

    right = subject.judged(Altered(subject.engine, name_the_other), precision=precision)
    assert right.reason == ""
    wrong = subject.judged(Altered(subject.engine, name_the_next), precision=precision)
    # Only at zeros, where all classes score the same, any is right.
    assert "agreement 0.0" in wrong.reason


def test_labels_of_single_rows(tmp_path: Path) -> None:
    """Of all that is drawn they are few; of the requests of many models they are most."""
    subject = Subject.of(tmp_path, ARGMAX, w=normal(8, 10))
    bucket = Bucket(dims={"batch": DimRange(min=1, opt=32, max=64)})

    def name_the_next(answer: Answer, inputs: Mapping[str, Array]) -> None:
        if len(inputs["x"]) == 1:
            answer["ids"] = (answer["ids"] + 1) % 10

    for precision in (Precision.BF16, Precision.INT8):
        assert subject.judged(subject.engine, None, precision, (bucket,)).reason == ""
        wrong = subject.judged(Altered(subject.engine, name_the_next), None, precision, (bucket,))
        assert "batches of 1: " in wrong.reason


def blind(verdict: ProofVerdict) -> set[str]:
    """What the proof was blind to."""
    return {name for check in verdict.power for name in check.blind}


def test_bounds_that_let_a_fault_pass_are_refused_unless_the_recipe_accepts_it(
    tmp_path: Path,
) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    wide = Tolerance(rel_l2=5, max_abs=5, cosine_distance=2, column=5, gain=5)
    recipe = Recipe(tolerances={Precision.BF16: wide})

    def err(answer: Answer, inputs: Mapping[str, Array]) -> None:
        answer["y"] = answer["y"] * np.float32(1.9)

    # A right engine lets the bounds be tightened, so that they see everything.
    right = subject.judged(subject.engine, recipe, Precision.BF16)
    assert (right.reason, blind(right)) == ("", set())
    assert all("mean only" in check.tightened for check in right.power)
    verdict = subject.judged(Altered(subject.engine, err), recipe, Precision.BF16)
    assert "the proof is blind to" in verdict.reason
    assert "accept_blind" in verdict.reason
    accepting = recipe.model_copy(
        update={
            "outputs": {"y": OutputRecipe(accept_blind={Precision.BF16: tuple(blind(verdict))})}
        }
    )
    assert subject.judged(Altered(subject.engine, err), accepting, Precision.BF16).reason == ""


def test_what_a_default_proof_would_have_refused_is_recorded(tmp_path: Path) -> None:
    subject = Subject.of(tmp_path, LINEAR, w=normal(8, 4))
    (power,) = subject.judged(subject.engine).power
    assert set(power.refused) == {
        "rows shuffled",
        "first sample repeated",
        "columns permuted",
        "a column's sign flipped",
        "a column zero",
        "mean only",
        "noise of the same scale",
        "2 % off",
        "10 % off",
        "shifted by one spread",
        "a column shifted by a tenth of its spread",
        "shifted by length",
        "one row in fifty of another sample",
        "absolute values",
        "fp16 overflow",
    }
    assert not power.blind
