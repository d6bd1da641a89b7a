"""The shapes that a model is built for and served at when its recipe names none."""

from collections.abc import Iterable, Mapping

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.recipe import Bucket, DimRange

_BATCH = DimRange(min=1, opt=4, max=8)
_DIM = DimRange(min=1, opt=64, max=128)


def default_buckets(
    inputs: Iterable[TensorSpec],
    batch_dim: str | None,
    limits: Mapping[str, DimLimits] | None = None,
) -> tuple[Bucket, ...]:
    """One bucket of every dynamic dimension; one of none for a model that has none.

    Args:
        inputs: of the master.
        batch_dim: the dimension of rows.
        limits: by dimension, where the source says what it may be.
    """
    dims = {dim: _BATCH if dim == batch_dim else _DIM for dim in dynamic_dims(inputs)}
    for dim, limit in (limits or {}).items():
        if dim in dims:
            dims[dim] = limit.clipped(dims[dim])
    return (Bucket(dims=dims),)


def dynamic_dims(inputs: Iterable[TensorSpec]) -> list[str]:
    """Names of the dynamic dimensions of the inputs, sorted."""
    return sorted({dim for spec in inputs for dim in spec.shape if isinstance(dim, str)})
