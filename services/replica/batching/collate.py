"""Joining requests into one engine run and splitting its outputs back, exactly.

Requests are joined along the batch dimension. Other dynamic dimensions must be equal,
unless the recipe has how every input with that dimension is padded and one of them is a
mask that marks the padding: only then do padded positions not change anybody's answer. An
engine may want larger inputs than the longest request; then rows are made up as well, as
copies of the last one: a row of nothing but padding may become NaN, and some kernels take
the range of their numbers from all rows.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from services.contracts.errors import EngineError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.replica.request.infer_call import InferCall
from services.replica.request.signature import Signature

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JoinRules:
    """How calls of one model, whose arrays are of any shape, may be joined.

    Attributes:
        batch_dim: None when calls can only run one by one.
        rows_dim: counted as rows, also where calls run one by one; None when there is none.
        paddable: dynamic dimensions along which a call may be padded.
        pads: value of padded positions by input name.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batch_dim: str | None
    rows_dim: str | None
    paddable: frozenset[str]
    pads: Mapping[str, float]

    @classmethod
    def from_model(cls, model: ModelVersion, signature: Signature) -> Self:
        """The rules that a model's master and recipe give."""
        is_joinable = signature.batch_dim in signature.growing
        paddable = signature.growing - {signature.batch_dim}
        if is_joinable:
            _log_unpadded(model, signature, paddable)
        return cls(
            inputs=signature.inputs,
            outputs=signature.outputs,
            batch_dim=signature.batch_dim if is_joinable else None,
            rows_dim=signature.batch_dim,
            paddable=paddable,
            pads={name: wanted.pad for name, wanted in model.recipe.inputs.items()},
        )

    @property
    def growing(self) -> frozenset[str]:
        """Dimensions that may be made larger than any call's."""
        return self.paddable | {self.batch_dim} if self.batch_dim else self.paddable

    def sizes_of(self, calls: Sequence[InferCall]) -> Mapping[str, int]:
        """Sizes of a batch of calls that can run together."""
        first = calls[0].sizes
        if len(calls) == 1:
            return first
        dim = self.batch_dim or ""
        if all(call.sizes is first or call.sizes == first for call in calls):
            return {**first, dim: len(calls) * first[dim]}
        sizes = {name: max(call.sizes[name] for call in calls) for name in first}
        sizes[dim] = sum(call.sizes[dim] for call in calls)
        return sizes

    def merged(self, left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int] | None:
        """Sizes of a batch that holds both, or None when they cannot run together."""
        if self.batch_dim is None:
            return None
        sizes = dict(left)
        for dim, size in right.items():
            if dim == self.batch_dim:
                sizes[dim] += size
            elif dim in self.paddable and size and sizes[dim]:
                sizes[dim] = max(sizes[dim], size)
            elif sizes[dim] != size:
                # Of what is empty nothing is known that padding would not change.
                return None
        return sizes

    def join(
        self, calls: Sequence[InferCall], sizes: Mapping[str, int] | None = None
    ) -> Mapping[str, Array]:
        """One set of inputs for all calls, rows in order, each padded to the longest.

        Args:
            calls: that can run together.
            sizes: to pad to, where they are larger than those of the calls.
        """
        own = self.sizes_of(calls)
        if len(calls) == 1 and sizes in (None, own):
            # Views of a request's bytes may start anywhere; engines want aligned elements.
            inputs = calls[0].inputs
            return {
                name: array if array.flags.aligned else array.copy()
                for name, array in inputs.items()
            }
        wanted = own if sizes is None else sizes
        return {name: self._joined(spec, calls, wanted) for name, spec in self.inputs.items()}

    def split(
        self,
        outputs: Mapping[str, Array],
        calls: Sequence[InferCall],
        sizes: Mapping[str, int] | None = None,
    ) -> list[dict[str, Array]]:
        """Each call's own rows and positions of every output it asked for.

        Args:
            outputs: of one run.
            calls: as they were joined.
            sizes: as they were joined.

        Raises:
            EngineError: an output has not as many rows as the batch.
        """
        own = self.sizes_of(calls)
        if len(calls) == 1 and sizes in (None, own):
            return [dict(outputs)]
        dim = self.batch_dim or ""
        parts = []
        first = 0
        for call in calls:
            parts.append(
                {name: outputs[name][self._own(name, call, first)] for name in call.outputs}
            )
            first += call.sizes[dim]
        self._check_rows(outputs, (own if sizes is None else sizes)[dim])
        return parts

    def _joined(
        self, spec: TensorSpec, calls: Sequence[InferCall], sizes: Mapping[str, int]
    ) -> Array:
        arrays = [call.inputs[spec.name] for call in calls]
        axis = spec.shape.index(self.batch_dim or "")
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
        num_rows = sum(array.shape[axis] for array in arrays)
        if num_rows == shape[axis] and all(_equal_but(a.shape, shape, axis) for a in arrays):
            return np.concatenate(arrays, axis=axis)
        joined = np.full(shape, self.pads.get(spec.name, 0), dtype=arrays[0].dtype)
        first = 0
        for array in arrays:
            index = [slice(0, size) for size in array.shape]
            index[axis] = slice(first, first + array.shape[axis])
            joined[tuple(index)] = array
            first += array.shape[axis]
        rows = np.moveaxis(joined, axis, 0)
        rows[first:] = rows[first - 1]
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


def _log_unpadded(model: ModelVersion, signature: Signature, paddable: frozenset[str]) -> None:
    """Log once, as the rules are made, what will keep requests apart."""
    dims = {d for spec in signature.inputs.values() for d in spec.shape if isinstance(d, str)}
    for dim in sorted(dims - paddable - {signature.batch_dim}):
        logger.info(
            "model '%s' version %d: requests of different '%s' never share a batch; for that its "
            "recipe has to name every input with that dimension under inputs, one of them with "
            "role mask and pad 0",
            model.name,
            model.version,
            dim,
        )


def _equal_but(left: Sequence[int], right: Sequence[int], axis: int) -> bool:
    return all(i == axis or a == b for i, (a, b) in enumerate(zip(left, right, strict=True)))
