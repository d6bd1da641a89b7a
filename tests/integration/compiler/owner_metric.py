"""A task metric as the owner of a model writes one."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Run = Mapping[str, NDArray[np.generic]]


def same_sign(inputs: Sequence[Run], wanted: Sequence[Run], found: Sequence[Run]) -> float:
    """Share of the numbers of `pooled` that have the reference's sign."""
    assert all({"ids", "mask"} == set(run) for run in inputs)
    pairs = [
        (np.asarray(w["pooled"], dtype=float), np.asarray(f["pooled"], dtype=float))
        for w, f in zip(wanted, found, strict=True)
    ]
    return float(np.mean([(np.sign(w) == np.sign(f)).mean() for w, f in pairs]))
