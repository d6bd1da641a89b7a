"""The sample at which an engine is farthest off: kept with a failed proof, to run it again.

The file is an .npz with the arrays of one run: `input NAME`, `wanted NAME`, `found NAME`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from compiler_worker.inputs.sampling import Sample, SampleVariant
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import FailedSample, OutputCheck
from services.contracts.model.recipe import Tolerance

logger = logging.getLogger(__name__)

# Larger samples are not kept: their inputs can be drawn again from the seed.
MAX_BYTES = 64 * 2**20

_Arrays = Mapping[str, Array]


@dataclass(kw_only=True)
class FailedRun:
    """One sample that failed: checks and the size of a typical element, by output; arrays."""

    sample: Sample
    checks: tuple[OutputCheck, ...]
    typical: Mapping[str, float] = field(default_factory=dict)
    wanted: _Arrays = field(default_factory=dict)
    found: _Arrays = field(default_factory=dict)


class WorstSample:
    """Remembers the worst of all samples that failed."""

    def __init__(self, allowed: Mapping[str, Tolerance]) -> None:
        """Judge by the bounds of each output."""
        self._allowed = dict(allowed)
        self._worst: tuple[float, FailedRun] | None = None

    def record(self, run: FailedRun) -> None:
        """Take a sample into account; one without a fault is none."""
        faulty = [check for check in run.checks if check.fault]
        if not faulty:
            return
        excess = max(_excess(check, self._allowed.get(check.output)) for check in faulty)
        if self._worst is None or excess > self._worst[0]:
            self._worst = (excess, run)

    def save(self, path: Path) -> FailedSample | None:
        """Describe the worst sample and write its arrays, where they are not too large."""
        if self._worst is None:
            return None
        run = self._worst[1]
        sample = run.sample
        # What clients sent is kept nowhere but where their samples are.
        if sample.variant is not SampleVariant.TRAFFIC:
            _write(path, run)
        return FailedSample(
            bucket=sample.bucket,
            sizes=sample.sizes,
            variant=sample.variant.value,
            seed=sample.seed,
            checks=run.checks,
            allowed=self._allowed,
            typical=dict(run.typical),
        )


def read_sample_arrays(path: Path, role: str) -> dict[str, Array]:
    """The arrays, of any shape, of one role (`input`, `wanted`, `found`) by name."""
    with np.load(path) as archive:
        prefix = f"{role} "
        return {
            name.removeprefix(prefix): archive[name]
            for name in archive.files
            if name.startswith(prefix)
        }


def _excess(check: OutputCheck, allowed: Tolerance | None) -> float:
    """How many times its bound the worst distance is."""
    if allowed is None:
        # The engine gave no answer at all: nothing is farther off.
        return float("inf")
    return max(
        check.rel_l2 / allowed.rel_l2,
        check.max_abs / allowed.max_abs,
        check.cosine_distance / allowed.cosine_distance,
    )


def _write(path: Path, run: FailedRun) -> None:
    roles = {"input": run.sample.inputs, "wanted": run.wanted, "found": run.found}
    named: dict[str, Array] = {
        f"{role} {name}": array for role, arrays in roles.items() for name, array in arrays.items()
    }
    num_bytes = sum(array.nbytes for array in named.values())
    # numpy's files do not keep extension types such as bfloat16 (kind "V").
    if num_bytes > MAX_BYTES or any(array.dtype.kind not in "fiub" for array in named.values()):
        logger.warning("the worst sample is not kept (%d bytes): it is drawn again", num_bytes)
        return
    np.savez_compressed(path, allow_pickle=False, **named)
