"""The shapes that a model is built for and served at when its recipe names none."""

from collections.abc import Iterable, Mapping

from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.recipe import Bucket, DimRange

_BATCH = DimRange(min=1, opt=4, max=8)
_DIM = DimRange(min=1, opt=64, max=128)
_SIDE = DimRange(min=32, opt=224, max=256)
_COLOURS = (3, 4)
_ROWS = ("batch", "batch_size")


def default_buckets(
    inputs: Iterable[TensorSpec],
    batch_dim: str | None,
    limits: Mapping[str, DimLimits] | None = None,
) -> tuple[Bucket, ...]:
    """One bucket of every dynamic dimension; one of none for a model that has none.

    Args:
        inputs: of the master.
        batch_dim: the dimension of rows, along which requests are joined.
        limits: by dimension, where the source has some.
    """
    specs = tuple(inputs)
    dims = dict.fromkeys(dynamic_dims(specs), _DIM)
    for spec in specs:
        dims |= {d: _SIDE for axis in image_sides(spec) if (d := spec.shape[axis]) in dims}
    # What is called so counts rows also where requests are not joined along it.
    dims |= {dim: _BATCH for dim in dims if dim in (batch_dim, *_ROWS)}
    for dim, limit in (limits or {}).items():
        if dim in dims:
            dims[dim] = limit.clipped(dims[dim])
    return (Bucket(dims=dims),)


def dynamic_dims(inputs: Iterable[TensorSpec]) -> list[str]:
    """Names of the dynamic dimensions of the inputs, sorted."""
    return sorted({dim for spec in inputs for dim in spec.shape if isinstance(dim, str)})


def image_sides(spec: TensorSpec) -> tuple[int, ...]:
    """Axes of height and width where an input looks like pictures; none where it does not."""
    if len(spec.shape) != 4:
        return ()
    if spec.shape[1] in _COLOURS:
        return 2, 3
    return (1, 2) if spec.shape[3] in _COLOURS else ()
