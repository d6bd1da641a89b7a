"""Inputs, of any shape, that are only good for running an engine: to check it and to warm it."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from services.contracts.kserve.byte_strings import BYTES, STRING_DTYPE
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, InputRecipe, InputRole
from services.engines.shapes import put_first


def sample_inputs(
    master: MasterRecord, recipes: Mapping[str, InputRecipe], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Valid inputs of these sizes: masks mark everything valid, values are the least or first.

    Args:
        master: has the inputs, and the categories that they know.
        recipes: by input; one without a recipe gets values of its datatype.
        sizes: by name of dynamic dimension.

    Returns:
        Arrays by input name, in the model's shapes.
    """
    samples = {s.name: _sample(s, recipes.get(s.name), sizes) for s in master.inputs}
    for name, known in master.input_values.items():
        put_first(samples[name], known.choices_beside(recipes.get(name)))
    return samples


def warm_up_sizes(specs: Iterable[TensorSpec], buckets: Iterable[Bucket]) -> list[dict[str, int]]:
    """The smallest and the largest sizes of every bucket, each once, smallest first.

    Where the smallest are empty, the smallest that are not are among them too.
    """
    dims = {dim for spec in specs for dim in spec.shape if isinstance(dim, str)}
    edges: list[dict[str, int]] = []
    for bucket in buckets:
        spans = {dim: bucket.dims[dim] for dim in dims if dim in bucket.dims}
        rest = dict.fromkeys(dims - spans.keys(), 1)
        edges.append(rest | {dim: span.min for dim, span in spans.items()})
        edges.append(rest | {dim: max(span.min, 1) for dim, span in spans.items()})
        edges.append(rest | {dim: span.max for dim, span in spans.items()})
    unique = {tuple(sorted(sizes.items())): sizes for sizes in edges}
    return sorted(unique.values(), key=lambda sizes: sum(sizes.values()))


def edge_inputs(model: ModelVersion, buckets: Iterable[Bucket]) -> Iterator[dict[str, Array]]:
    """All that an engine ran when it was loaded: a fault may be of one kernel, at one size."""
    for sizes in warm_up_sizes(model.master.inputs, buckets):
        yield sample_inputs(model.master, model.recipe.inputs, sizes)


def probe_sizes(specs: Iterable[TensorSpec], buckets: Iterable[Bucket]) -> dict[str, int]:
    """The smallest sizes at which an engine has something to compute."""
    return next(sizes for sizes in warm_up_sizes(specs, buckets) if all(sizes.values()))


def _sample(spec: TensorSpec, recipe: InputRecipe | None, sizes: Mapping[str, int]) -> Array:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    if spec.datatype == BYTES:
        return np.full(shape, (recipe or InputRecipe()).strings[0], dtype=STRING_DTYPE)
    is_mask = recipe is not None and recipe.role is InputRole.MASK
    is_one = is_mask and recipe is not None and not recipe.marks_padding
    value = 1 if is_one else recipe.low if recipe and not is_mask else 0
    return np.full(shape, value, dtype=NUMPY_FROM_DATATYPE[spec.datatype])
