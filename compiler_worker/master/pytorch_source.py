"""What a PyTorch factory returns, and how it is found.

A factory is a function without arguments in an importable module. Its module may declare,
as literals that are read without importing it, what else the model is made from:

    DISTRIBUTIONS = ("transformers",)           # their versions enter the fingerprint
    SOURCES = ("my_package.layers",)            # further modules whose text enters it
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from compiler_worker.master.source import TorchFactory
from services.contracts.errors import InvalidModelError
from services.contracts.kserve.tensors import Array
from services.contracts.model.dim_limits import DimLimits
from services.contracts.model.recipe import Recipe

if TYPE_CHECKING:
    import torch

# All that a factory needs comes from here.
__all__ = ["DimLimits", "PyTorchModel", "load_factory"]


@dataclass(frozen=True, kw_only=True)
class PyTorchModel:
    """A module and everything its export needs.

    Attributes:
        module: in eval mode; called with the inputs by position.
        example_inputs: tensor by input name, in the order of `forward`. The sizes of their
            dynamic dimensions must be above 1 and differ from each other, because an
            exporter takes 0 and 1 for constants and equal sizes for one dimension.
        dynamic_dims: name by axis, by input; one name is one dimension wherever it stands.
        dim_limits: range by dimension name.
        output_names: in the order in which the module returns them.
        recipe: what the owner wants of engines, when the factory knows it.
        samples: real inputs by name for task metrics, [N, ...] each.
    """

    module: torch.nn.Module
    example_inputs: dict[str, torch.Tensor]
    dynamic_dims: dict[str, dict[int, str]]
    dim_limits: dict[str, DimLimits]
    output_names: tuple[str, ...]
    recipe: Recipe | None = None
    samples: dict[str, Array] | None = field(default=None, repr=False)

    def traced_sizes(self) -> dict[str, int]:
        """Size by dimension name in the example inputs.

        Raises:
            InvalidModelError: a size is 0 or 1, equal to another dimension's, outside its
                limits or not the same wherever its name stands, or a name is unknown.
        """
        sizes: dict[str, int] = {}
        for name, axes in self.dynamic_dims.items():
            for axis, dim in axes.items():
                size = self._size_at(name, axis)
                if sizes.setdefault(dim, size) != size:
                    raise InvalidModelError(
                        f"dimension '{dim}' is {sizes[dim]} and, at axis {axis} of input "
                        f"'{name}', {size}: one size wanted; correct example_inputs"
                    )
        for dim, size in sizes.items():
            self._check_size(dim, size)
        _check_distinct(sizes)
        return sizes

    def _size_at(self, name: str, axis: int) -> int:
        tensor = self.example_inputs.get(name)
        if tensor is None or not 0 <= axis < tensor.ndim:
            raise InvalidModelError(
                f"dynamic_dims names axis {axis} of input '{name}', which example_inputs does "
                f"not have; known inputs: {', '.join(self.example_inputs)}"
            )
        return int(tensor.shape[axis])

    def _check_size(self, dim: str, size: int) -> None:
        limits = self.dim_limits.get(dim)
        if limits is None:
            found = ", ".join(self.dim_limits) or "none"
            raise InvalidModelError(
                f"dimension '{dim}' has no entry in dim_limits; add one, or correct the name of "
                f"one that is there: {found}"
            )
        if size < 2 or not limits.min <= size <= limits.max:
            raise InvalidModelError(
                f"dimension '{dim}' is {size} in example_inputs, a size above 1 within "
                f"{limits.min}..{limits.max} wanted: an exporter treats 0 and 1 as constants"
            )


def _check_distinct(sizes: dict[str, int]) -> None:
    dim_of: dict[int, str] = {}
    for dim, size in sizes.items():
        if size in dim_of:
            raise InvalidModelError(
                f"dimensions '{dim_of[size]}' and '{dim}' are both {size} in example_inputs, "
                "different sizes wanted: an exporter may merge them into one dimension"
            )
        dim_of[size] = dim


def load_factory(source: TorchFactory) -> PyTorchModel:
    """Import a factory and call it; raises InvalidModelError when that fails."""
    try:
        factory = cast(
            "Callable[[], object]", getattr(importlib.import_module(source.module), source.name)
        )
    except (ImportError, AttributeError) as error:
        raise InvalidModelError(
            f"factory {source}: cannot be imported: {error}; expected package.module:function "
            "on the Python path"
        ) from error
    try:
        model = factory()
    except Exception as error:
        # A factory is user code: whatever it raises is a fault of the model.
        raise InvalidModelError(f"factory {source} failed: {error!r}") from error
    if not isinstance(model, PyTorchModel):
        raise InvalidModelError(
            f"factory {source} returned {type(model).__name__}, a PyTorchModel wanted (from "
            f"{PyTorchModel.__module__}; docs/how-to/models/add-a-model.md has one)"
        )
    return model
