"""Joining requests into one engine run and splitting its outputs back, exactly.

Requests are joined along the batch dimension. Other dynamic dimensions must be equal,
unless the recipe says how every input with that dimension is padded and one of them is a
mask that marks the padding: only then do padded positions not change anybody's answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from services.contracts.errors import EngineError
from services.contracts.manifest import ModelVersion
from services.contracts.recipe import InputRole
from services.contracts.tensors import Array, TensorSpec
from services.replica.codec import InferCall
from services.replica.signature import Signature


@dataclass(frozen=True, kw_only=True)
class JoinRules:
    """How calls of one model may be joined.

    Attributes:
        batch_dim: None when calls can only run one by one.
        paddable: dynamic dimensions along which a call may be padded.
        pads: value of padded positions by input name.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batch_dim: str | None
    paddable: frozenset[str]
    pads: Mapping[str, float]

    @classmethod
    def from_model(cls, model: ModelVersion, signature: Signature) -> Self:
        """The rules that a model's master and recipe give."""
        is_joinable = _is_joinable(signature)
        return cls(
            inputs=signature.inputs,
            outputs=signature.outputs,
            batch_dim=signature.batch_dim if is_joinable else None,
            paddable=_paddable_dims(model, signature) if is_joinable else frozenset(),
            pads={name: wanted.pad for name, wanted in model.recipe.inputs.items()},
        )

    def merged(self, left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int] | None:
        """Sizes of a batch that holds both, or None when they cannot run together."""
        if self.batch_dim is None:
            return None
        sizes = dict(left)
        for dim, size in right.items():
            if dim == self.batch_dim:
                sizes[dim] += size
            elif dim in self.paddable:
                sizes[dim] = max(sizes[dim], size)
            elif sizes[dim] != size:
                return None
        return sizes

    def join(self, calls: Sequence[InferCall]) -> Mapping[str, Array]:
        """One set of inputs for all calls, rows in order, each padded to the longest."""
        if len(calls) == 1:
            # Views of a request's bytes may start anywhere; engines want aligned elements.
            inputs = calls[0].inputs
            return {
                name: array if array.flags.aligned else np.require(array, requirements="A")
                for name, array in inputs.items()
            }
        return {name: self._joined(spec, calls) for name, spec in self.inputs.items()}

    def split(
        self, outputs: Mapping[str, Array], calls: Sequence[InferCall]
    ) -> list[dict[str, Array]]:
        """Each call's own rows and positions of every output it asked for.

        Raises:
            EngineError: an output has not as many rows as the batch.
        """
        if len(calls) == 1:
            return [dict(outputs)]
        parts, first = [], 0
        for call in calls:
            rows = call.sizes[self.batch_dim or ""]
            parts.append(
                {name: outputs[name][self._own(name, call, first)] for name in call.outputs}
            )
            first += rows
        self._check_rows(outputs, first)
        return parts

    def _joined(self, spec: TensorSpec, calls: Sequence[InferCall]) -> Array:
        arrays = [call.inputs[spec.name] for call in calls]
        axis = spec.shape.index(self.batch_dim or "")
        first_shape = arrays[0].shape
        if all(array.shape == first_shape for array in arrays):  # nearly always: one row each
            return np.concatenate(arrays, axis=axis)
        shape = np.max([array.shape for array in arrays], axis=0)
        if all(_equal_but(array.shape, shape, axis) for array in arrays):
            return np.concatenate(arrays, axis=axis)
        shape[axis] = sum(array.shape[axis] for array in arrays)
        joined = np.full(shape, self.pads.get(spec.name, 0), dtype=arrays[0].dtype)
        first = 0
        for array in arrays:
            index = [slice(0, size) for size in array.shape]
            index[axis] = slice(first, first + array.shape[axis])
            joined[tuple(index)] = array
            first += array.shape[axis]
        return joined

    def _own(self, output: str, call: InferCall, first: int) -> tuple[slice, ...]:
        """Index of a call's part of a joined output whose rows start at `first`."""
        index = []
        for dim in self.outputs[output].shape:
            if dim == self.batch_dim:
                index.append(slice(first, first + call.sizes[dim]))
            else:
                own = isinstance(dim, str) and dim in self.paddable
                index.append(slice(0, call.sizes[str(dim)]) if own else slice(None))
        return tuple(index)

    def _check_rows(self, outputs: Mapping[str, Array], rows: int) -> None:
        for name, spec in self.outputs.items():
            found = outputs[name].shape[spec.shape.index(self.batch_dim or "")]
            if found != rows:
                raise EngineError(f"output '{name}': expected {rows} rows, got {found}")


def _is_joinable(signature: Signature) -> bool:
    """Whether rows of all tensors are independent and can be told apart again.

    An output with a dynamic dimension that no input has may depend on its companions.
    """
    dim = signature.batch_dim
    known = {name for spec in signature.inputs.values() for name in spec.shape}
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    return dim is not None and all(
        spec.shape.count(dim) == 1 and all(isinstance(d, int) or d in known for d in spec.shape)
        for spec in tensors
    )


def _paddable_dims(model: ModelVersion, signature: Signature) -> frozenset[str]:
    recipes = model.recipe.inputs
    dims = {d for spec in signature.inputs.values() for d in spec.shape if isinstance(d, str)}
    paddable = set()
    for dim in dims - {signature.batch_dim}:
        names = [name for name, spec in signature.inputs.items() if dim in spec.shape]
        has_mask = any(
            name in recipes and recipes[name].role is InputRole.MASK and recipes[name].pad == 0
            for name in names
        )
        if has_mask and all(name in recipes for name in names):
            paddable.add(dim)
    return frozenset(paddable)


def _equal_but(left: Sequence[int], right: Sequence[int], axis: int) -> bool:
    return all(i == axis or a == b for i, (a, b) in enumerate(zip(left, right, strict=True)))
