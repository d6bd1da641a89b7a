"""How large a model's answers are, before any is compared: an error near zero is no large one."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler_worker.inputs.sampling import Sample, is_floating
from compiler_worker.measures.comparison import compared_in
from compiler_worker.references.models import Model
from services.contracts.model.manifest import MasterRecord
from services.contracts.model.recipe import Recipe

Float64 = NDArray[np.float64]


@dataclass(kw_only=True)
class Sizes:
    """How large the elements of an output are, over all samples."""

    squares: float = 0.0
    roots: float = 0.0
    num: int = 0
    least: float = 0.0
    most: float = 0.0

    def add(self, elements: Float64) -> None:
        """Take some into account, of any shape."""
        self.squares += float((elements**2).sum())
        self.roots += float(np.sqrt(np.abs(elements)).sum())
        self.num += elements.size
        self.least = min(self.least, float(elements.min(initial=0.0)))
        self.most = max(self.most, float(elements.max(initial=0.0)))

    @property
    def is_of_one_sign(self) -> bool:
        """Whether zero is an end of all that is answered: probabilities, amounts."""
        return not self.least < 0 < self.most

    @property
    def typical(self) -> float:
        """Root mean square; of one sign the square of the mean root, which a few hardly move."""
        if self.is_of_one_sign:
            return self.middle
        return math.sqrt(self.squares / self.num)

    @property
    def middle(self) -> float:
        """Square of the mean root, which a few large ones hardly move."""
        return (self.roots / max(self.num, 1)) ** 2


def typical_sizes(
    model: Model, master: MasterRecord, recipe: Recipe, samples: Iterable[Sample]
) -> dict[str, float]:
    """Of each floating output, as `Sizes.typical` has it.

    Args:
        model: the reference.
        master: names its outputs.
        recipe: names the masks of positions that count.
        samples: those of extreme values are left out.
    """
    sizes: dict[str, Sizes] = {}
    for sample in samples:
        if sample.variant.is_extreme:
            continue
        answers = model.run(sample.inputs)
        for spec in master.outputs:
            if is_floating(spec):
                array = answers[spec.name].astype(np.float64)
                keep = compared_in(spec, recipe, sample.inputs, array) & np.isfinite(array)
                sizes.setdefault(spec.name, Sizes()).add(array[keep])
    return {name: each.typical for name, each in sizes.items()}
