"""What an owner can do about an engine that is right where it pads nothing alone."""

from collections.abc import Sequence

from compiler_worker.inputs.integer_draws import drawn_role
from services.contracts.model.manifest import MasterRecord, OutputCheck
from services.contracts.model.recipe import Bucket, InputRole, Recipe


def padding_hint(
    checks: Sequence[OutputCheck], buckets: Sequence[Bucket], master: MasterRecord, recipe: Recipe
) -> str:
    """What to do where an engine is right at the largest sizes of its buckets alone, else "".

    Args:
        checks: of its proof.
        buckets: that it pads to.
        master: has inputs and outputs.
        recipe: of the model.
    """
    largest = {b.label: {name: dim.max for name, dim in b.dims.items()} for b in buckets}
    faults = {
        is_full: [c.fault for c in checks if (c.sizes == largest.get(c.bucket)) is is_full]
        for is_full in (True, False)
    }
    # Wrong elsewhere, right there, and tried there at all.
    if not any(faults[False]) or any(faults[True]) or not faults[True]:
        return ""
    wrong = {check.output for check in checks if check.fault}
    ways = [*_masks(wrong, master, recipe), "give each size that is asked for a bucket of its own"]
    return (
        "; at its buckets' largest sizes it is right: smaller inputs are padded to those; "
        f"{', or '.join(ways)} (min = max)"
    )


def _masks(wrong: set[str], master: MasterRecord, recipe: Recipe) -> list[str]:
    """What to say of masks in the recipe."""
    masks = [s for s in master.inputs if drawn_role(master, recipe, s.name) is InputRole.MASK]
    if not masks:
        return ["name the mask in the recipe (inputs: NAME: {role: mask})"]
    pairs = [
        f"{output.name}: {{valid_where: {mask.name}}}"
        for output in master.outputs
        for mask in masks
        if output.name in wrong and output.shape[: len(mask.shape)] == mask.shape
    ]
    if not pairs:
        return []
    # As of DeBERTa, whose attention from such a position is a mean over all, pads included.
    words = "where answers at positions that a mask excludes are not used, say so in the recipe"
    return [f"{words} (outputs: {{{', '.join(pairs)}}})"]
