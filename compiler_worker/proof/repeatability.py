"""Whether an engine answers the same inputs as it did before: one that keeps state may not.

The outputs of a run, by name, are of any shape.
"""

from collections.abc import Mapping

from compiler_worker.inputs.sampling import Sample
from compiler_worker.measures.comparison import compare_output
from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from compiler_worker.measures.distance import Comparison
from compiler_worker.proof.claim import sizes_text
from services.contracts.hardware.kinds import Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe


def compare_runs(
    spec: TensorSpec,
    recipe: Recipe,
    sample: Sample,
    again: Mapping[str, Array],
    found: Mapping[str, Array],
) -> Comparison:
    """Bit-equal runs pass at once; others may differ as fp32 sums in another order do.

    Args:
        spec: of the output.
        recipe: names the mask of valid positions.
        sample: what both runs were given.
        again: outputs of the second run by name.
        found: of the first.
    """
    # Whatever the engine's precision: its own rounding is the same in both runs.
    allowed = DEFAULT_TOLERANCES[Precision.FP32]
    return compare_output(spec, recipe, sample.inputs, again, found, allowed)


def change(
    master: MasterRecord,
    recipe: Recipe,
    sample: Sample,
    again: Mapping[str, Array],
    found: Mapping[str, Array],
) -> str:
    """The first output in which two runs differ, in words; "" where none does.

    Args:
        master: names the outputs.
        recipe: names the masks of valid positions.
        sample: what both runs were given.
        again: outputs of the second run by name.
        found: of the first.
    """
    for spec in master.outputs:
        fault = compare_runs(spec, recipe, sample, again, found).fault
        if fault:
            where = f"output '{spec.name}', bucket {sample.bucket} at {sizes_text(sample.sizes)}"
            return f"{where}: two runs on the same inputs differ: {fault}"
    return ""
