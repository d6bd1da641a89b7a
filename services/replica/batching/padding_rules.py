"""Which dimensions may be made larger than a request's own without changing its answer."""

from collections.abc import Mapping

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.recipe import InputRecipe, InputRole

Specs = Mapping[str, TensorSpec]


def growing_dims(
    inputs: Specs, outputs: Specs, batch_dim: str | None, recipes: Mapping[str, InputRecipe]
) -> frozenset[str]:
    """Dimensions that may be padded: the rows where they are independent, and the recipe's.

    Args:
        inputs: specs by name.
        outputs: specs by name.
        batch_dim: the dimension of the rows; None when the model has none, and then nothing grows.
        recipes: by input; say how to pad and to mask.
    """
    if batch_dim is None or not _is_joinable(inputs, outputs, batch_dim):
        return frozenset()
    return _paddable_dims(inputs, batch_dim, recipes) | {batch_dim}


def _is_joinable(inputs: Specs, outputs: Specs, batch_dim: str) -> bool:
    """Whether rows of all tensors are independent and can be separated again.

    An output with a dynamic dimension that no input has may depend on its companions.
    """
    known = {name for spec in inputs.values() for name in spec.shape}
    return all(
        spec.shape.count(batch_dim) == 1
        and all(isinstance(dim, int) or dim in known for dim in spec.shape)
        for spec in (*inputs.values(), *outputs.values())
    )


def _paddable_dims(
    inputs: Specs, batch_dim: str, recipes: Mapping[str, InputRecipe]
) -> frozenset[str]:
    dims = {d for spec in inputs.values() for d in spec.shape if isinstance(d, str)}
    # Nothing that is put after a string is known to change nothing.
    string_dims = {d for spec in inputs.values() if spec.datatype == BYTES for d in spec.shape}
    paddable = set()
    for dim in dims - {batch_dim} - string_dims:
        names = [name for name, spec in inputs.items() if dim in spec.shape]
        has_mask = any(
            name in recipes and recipes[name].role is InputRole.MASK and recipes[name].pad in (0, 1)
            for name in names
        )
        if has_mask and all(name in recipes for name in names):
            paddable.add(dim)
    return frozenset(paddable)
