"""What proofs of eight bits may overlook is written into the recipe, unless that says it."""

from compiler_worker.model_checks.accepted_blindness import (
    OF_EIGHT_BITS,
    accepted_words,
    with_accepted_blindness,
)
from compiler_worker.proof.sabotages import OF_FLOATS
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import OutputRecipe, Recipe

MASTER = MasterRecord(
    digest="0" * 64,
    files={},
    inputs=(TensorSpec(name="x", datatype="FP32", shape=("batch", 4)),),
    outputs=(
        TensorSpec(name="y", datatype="FP32", shape=("batch", 4)),
        TensorSpec(name="z", datatype="FP32", shape=("batch", 2)),
        TensorSpec(name="ids", datatype="INT64", shape=("batch",)),
    ),
    opset=17,
    num_parameters=16,
)
INT8 = Precision.INT8


def accepting(recipe: Recipe) -> Recipe:
    return with_accepted_blindness(recipe, MASTER, has_calibration=True)


def test_what_may_be_overlooked_are_faults_that_proofs_know() -> None:
    assert {fault for faults in OF_EIGHT_BITS.values() for fault in faults} <= set(OF_FLOATS)
    assert set(OF_EIGHT_BITS) == {each for each in Precision if each.is_quantised}


def test_outputs_of_floats_accept_it_in_eight_bits_alone() -> None:
    kept = accepting(Recipe(precisions=(Precision.FP32, INT8)))
    accepted = {INT8: OF_EIGHT_BITS[INT8]}
    assert {name: output.accept_blind for name, output in kept.outputs.items()} == {
        "y": accepted,
        "z": accepted,
    }
    [line] = accepted_words(kept)
    assert line.startswith("int8: its proof may overlook on y, z: 2 % off")
    plain = Recipe(precisions=(Precision.FP32, Precision.BF16))
    assert accepting(plain) == plain


def test_auto_accepts_it_where_it_builds_in_eight_bits() -> None:
    listed = accepting(Recipe(precisions=(Precision.FP32, INT8)))
    assert accepting(Recipe()).outputs == listed.outputs
    assert with_accepted_blindness(Recipe(), MASTER, has_calibration=False) == Recipe()


def test_a_recipe_that_says_what_it_accepts_is_left_as_it_is() -> None:
    own = {"y": OutputRecipe(accept_blind={INT8: ()}), "z": OutputRecipe(valid_where="m")}
    kept = accepting(Recipe(precisions=(INT8,), outputs=own)).outputs
    assert kept["y"].accept_blind == {INT8: ()}
    assert kept["z"] == OutputRecipe(valid_where="m", accept_blind={INT8: OF_EIGHT_BITS[INT8]})
