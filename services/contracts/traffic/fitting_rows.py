"""Which samples a version may learn from: windows of versions that take the same, and their rows.

Integers that another master or tokenizer was sent mean something else.
"""

from collections.abc import Iterable, Mapping

from services.contracts.kserve.byte_strings import BYTES
from services.contracts.kserve.tensors import NUMPY_FROM_DATATYPE, Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.value_limits import limits_of
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import Windows
from services.contracts.traffic.drift import lengths_of, masked_dims, valid_part
from services.contracts.traffic.sample_cipher import KEY_SETTING
from services.contracts.traffic.sampled_rows import SampledRow

Row = Mapping[str, Array]


def windows_for(
    registry: Registry, version: ModelVersion, since: str = ""
) -> tuple[Windows, str]:
    """Windows of versions with the same master and tokenizer that can be opened.

    And in words what was left out.

    Args:
        registry: has the samples, and the key.
        version: that is to learn from them.
        since: of windows that ended later, in ISO 8601; "" for all.
    """
    known, _ = registry.readable_versions(version.name)
    alike = {each.version for each in known if _taken(each) == _taken(version)}
    windows = registry.sample_windows(version.name)
    recent = {key: each for key, each in windows.items() if each.ends_at > since}
    own = {key: each for key, each in recent.items() if each.version in alike}
    opened = {key: each for key, each in own.items() if registry.opens(each)}
    words = ""
    if foreign := len(recent) - len(own):
        words += f"; left out: {foreign} windows of another master or tokenizer"
    if sealed := len(own) - len(opened):
        words += f"; left out: {sealed} windows sealed with a key that is not the one given: name "
        words += f"theirs in {KEY_SETTING}, or delete them"
    return opened, words


def fitting_rows(sampled: Iterable[SampledRow], version: ModelVersion) -> list[Row]:
    """Whole rows without padding, in the types of the version's inputs, that it would serve."""
    limits = limits_of(version.master, version.recipe)
    rows = [row for each in sampled if (row := _typed(each.arrays, version)) is not None]
    return [
        row
        for row in rows
        if _is_held(row, version)
        and all(each.first_outside(row[name]) is None for name, each in limits.items())
    ]


def _taken(version: ModelVersion) -> tuple[object, ...]:
    return version.master.digest, version.tokenizer


def _typed(arrays: Row, version: ModelVersion) -> Row | None:
    """A row in the types of the version's inputs; None where it lacks some, or is empty."""
    batch_dim = version.recipe.batching.batch_dim
    row = {}
    for spec in version.master.inputs:
        array = arrays.get(spec.name)
        rank = len(spec.shape) - (spec.shape[:1] == (batch_dim,))
        if array is None or array.ndim != rank or spec.datatype == BYTES:
            return None
        row[spec.name] = array.astype(NUMPY_FROM_DATATYPE[spec.datatype])
    valid = valid_part(row, version.master, version.recipe)
    return valid if all(array.size for array in valid.values()) else None


def _is_held(row: Row, version: ModelVersion) -> bool:
    """Whether a bucket takes the row's lengths, larger ones than them where a mask lets it pad."""
    sizes = lengths_of(row, version.master, version.recipe)
    padded = masked_dims(version.master, version.recipe)
    return not version.buckets or any(
        all(
            (dim in padded or span.min <= sizes[dim]) and sizes[dim] <= span.max
            for dim, span in bucket.dims.items()
            if dim in sizes
        )
        for bucket in version.buckets
    )
