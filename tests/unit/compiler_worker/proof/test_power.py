"""What a proof would have refused: told apart from what it is blind to."""

import numpy as np
import pytest

from compiler_worker.inputs.sampling import SampleVariant
from compiler_worker.proof.power import MAX_ELEMENTS, Answered, power_check
from compiler_worker.proof.sabotages import OF_FLOATS, OF_INTEGERS, Sabotage
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensors import Array
from services.contracts.model.recipe import OutputRecipe, Recipe, Tolerance
from services.contracts.selection.proof_checks import PowerCheck
from tests.unit.compiler_worker.proof.judges import judge, met, normal, sample

WANTED = normal(256, 5)
WIDE = Tolerance(rel_l2=9, max_abs=9, cosine_distance=2, column=9, gain=9, agreement=0.01)


def passes(output: str, sabotage: Sabotage) -> bool:
    """Tasks that see nothing."""
    return True


def measured(
    found: Array,
    wanted: Array = WANTED,
    datatype: str = "FP32",
    precision: Precision = Precision.FP32,
    recipe: Recipe | None = None,
) -> PowerCheck:
    one = judge("batch", 5, datatype=datatype, precision=precision, recipe=recipe)
    check = power_check(one, met(one, wanted, found), passes)
    assert check is not None
    return check


def test_tight_bounds_refuse_everything() -> None:
    assert set(measured(WANTED).refused) == set(OF_FLOATS)
    ids = np.arange(1280).reshape(256, 5) % 11
    assert set(measured(ids, ids, "INT64").refused) == set(OF_INTEGERS)


@pytest.mark.parametrize(("error", "is_told_apart"), [(0.0, True), (0.9, True), (1.5, False)])
def test_wide_bounds_are_tightened_for_an_engine_that_is_near_enough(
    error: float, is_told_apart: bool
) -> None:
    found = WANTED * np.float32(1 + error)
    check = measured(found, recipe=Recipe(tolerances={Precision.FP32: WIDE}))
    assert ("a column's sign flipped" in check.tightened) is is_told_apart
    assert ("a column's sign flipped" in check.blind) is not is_told_apart
    assert set(check.unaccepted) == set(check.blind)


def test_a_recipe_accepts_by_name() -> None:
    accepted = ("mean only", "a column zero")
    recipe = Recipe(
        tolerances={Precision.FP32: WIDE},
        outputs={"y": OutputRecipe(accept_blind={Precision.FP32: accepted})},
    )
    check = measured(WANTED * 3, recipe=recipe)
    assert set(accepted) == set(check.accepted)
    assert set(check.unaccepted) == set(check.blind) - set(accepted) != set()


def test_of_eight_bits_two_per_cent_are_accepted_where_the_recipe_says_so() -> None:
    found = WANTED * np.float32(1.015) + normal(256, 5, seed=2) * np.float32(0.02)
    check = measured(found, precision=Precision.INT8)
    assert check.blind == check.unaccepted == ("2 % off",)
    assert "10 % off" in check.refused
    for accepting, is_accepted in ((Precision.INT8, True), (Precision.BF16, False)):
        output = OutputRecipe(accept_blind={accepting: ("2 % off",)})
        recipe = Recipe(outputs={"y": output})
        again = measured(found, recipe=recipe, precision=Precision.INT8)
        assert bool(again.accepted) is is_accepted


@pytest.mark.parametrize(("error", "is_refused"), [(0.03, False), (0.06, True)])
def test_half_precision_is_not_excused_for_a_tenth_of_a_spread(
    error: float, is_refused: bool
) -> None:
    """Bounds of bf16 would let it pass: an engine that errs by more than half of it is blind."""
    wanted = WANTED + 20
    check = measured(wanted + np.float32(error), wanted, precision=Precision.BF16)
    assert ("a column shifted by a tenth of its spread" in check.unaccepted) is is_refused


def test_what_a_task_refuses_is_not_blind() -> None:
    one = judge("batch", 5, recipe=Recipe(tolerances={Precision.FP32: WIDE}))
    kept = met(one, WANTED, WANTED * 3)
    asked = list[str]()

    def fails(output: str, sabotage: Sabotage) -> bool:
        asked.append(output)
        return False

    check = power_check(one, kept, fails)
    assert check is not None
    assert check.blind == ()
    assert set(asked) == {"y"}


def test_a_fault_that_changes_nothing_is_not_counted() -> None:
    positive = np.abs(WANTED)
    check = measured(positive, positive)
    assert "absolute values" not in (*check.refused, *check.tightened, *check.blind)
    assert check.unchanged == ("absolute values",)


def test_a_fault_that_hardly_changes_anything_is_refused_where_bounds_are_that_tight() -> None:
    hardly_negative = np.abs(WANTED)
    hardly_negative[0] = -0.02
    recipe = Recipe(tolerances={Precision.FP32: WIDE.model_copy(update={"column": 1e-3})})
    assert "absolute values" in measured(hardly_negative, hardly_negative, recipe=recipe).refused
    wide = Recipe(tolerances={Precision.FP32: WIDE})
    assert measured(hardly_negative, hardly_negative, recipe=wide).unchanged == ("absolute values",)


def test_of_strings_there_is_nothing_to_measure() -> None:
    words = np.array([["a", "b"]], dtype=object)
    one = judge("batch", 2, datatype="BYTES")
    assert power_check(one, met(one, words), passes) is None


def test_answers_are_kept_while_there_is_room_and_the_first_in_any_case() -> None:
    answered = Answered()
    large = {"y": np.zeros(MAX_ELEMENTS + 1, np.float32)}
    answered.offer(sample(SampleVariant.LARGE), large)
    assert answered.kept == []
    answered.offer(sample(), large)
    answered.offer(sample(), {"y": WANTED})
    assert [kept.wanted for kept in answered.kept] == [large]
