"""What one model version takes and gives, in the form that requests are checked against."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from services.contracts.errors import InvalidRequestError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.kserve.tensors import Array
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Bucket
from services.contracts.model.text_input import text_input
from services.contracts.model.value_limits import ValueLimits, limits_of
from services.engines.shapes import dims_that_may_be_empty, ranges_text
from services.replica.batching.padding_rules import growing_dims


@dataclass(frozen=True, kw_only=True, eq=False)
class Signature:
    """Names, types and limits of a model version; equal to itself only, so it can be a key.

    Attributes:
        name: the model's name.
        version: the concrete version, as responses echo it.
        inputs, outputs: specs by tensor name, in the master's order.
        batch_dim: the dimension counted as rows; None when the master has no such dimension.
        growing: dimensions that may be made larger than a request's.
        buckets: the shapes that the model is served at; empty sets no limit.
        limits: of each input whose values the graph or the recipe limits.
        text: the input that may come in place of all others; None without a tokenizer.
    """

    name: str
    version: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batch_dim: str | None
    growing: frozenset[str]
    buckets: tuple[Bucket, ...]
    limits: Mapping[str, ValueLimits]
    text: TensorSpec | None = None

    @classmethod
    def from_model(cls, model: ModelVersion) -> Self:
        """The signature of a published model version."""
        wanted = model.recipe.batching.batch_dim
        has_dim = any(wanted in spec.shape for spec in model.master.inputs)
        inputs = {spec.name: spec for spec in model.master.inputs}
        outputs = {spec.name: spec for spec in model.master.outputs}
        batch_dim = wanted if has_dim else None
        return cls(
            name=model.name,
            version=str(model.version),
            inputs=inputs,
            outputs=outputs,
            batch_dim=batch_dim,
            growing=growing_dims(inputs, outputs, batch_dim, model.recipe.inputs),
            buckets=model.buckets,
            limits=limits_of(model.master, model.recipe),
            text=text_input(model),
        )

    @property
    def max_rows(self) -> int:
        """The largest batch that a bucket takes; 0 when nothing limits it."""
        spans = [bucket.dims.get(self.batch_dim or "") for bucket in self.buckets]
        return max((span.max for span in spans if span), default=0)

    def rows(self, sizes: Mapping[str, int]) -> int:
        """Rows of a request with these dynamic dimensions."""
        return sizes.get(self.batch_dim or "", 1)

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse dynamic dimensions that no bucket takes, alike for every kind of engine.

        Raises:
            InvalidRequestError: with the sizes found and those allowed.
        """
        may_be_empty = dims_that_may_be_empty(self.buckets)
        for dim, size in sizes.items():
            if size < 1 and dim not in may_be_empty:
                raise InvalidRequestError(
                    f"dimension '{dim}' for model '{self.name}': expected at least 1, got {size}"
                    + ("" if dim == self.batch_dim else "; a recipe's min of 0 lets it be empty")
                )
        max_rows = self.max_rows
        rows = self.rows(sizes)
        if 0 < max_rows < rows:
            raise InvalidRequestError(
                f"inference request batch-size must be <= {max_rows} for '{self.name}', got {rows}"
                f"; send parts of at most {max_rows} rows, or add the model again with a recipe "
                f"whose bucket has a larger max of '{self.batch_dim}'"
            )
        if self.buckets and not any(fits(each, sizes, self.growing) for each in self.buckets):
            raise InvalidRequestError(self._size_error(sizes))

    def check_values(self, inputs: Mapping[str, Array]) -> None:
        """Refuse integers that graph or recipe do not allow: no engine may look them up.

        Inputs are of any shape.

        Raises:
            InvalidRequestError: with input, place, the value found and those allowed.
        """
        for name, limits in self.limits.items():
            if (place := limits.first_outside(inputs[name])) is not None:
                raise InvalidRequestError(
                    f"input '{name}' for model '{self.name}' at {list(place)}: expected values "
                    f"from {limits.span_at(place)}{limits.source}, got {inputs[name][place]}"
                )

    def _size_error(self, sizes: Mapping[str, int]) -> str:
        allowed = " or ".join(ranges_text(bucket.dims) for bucket in self.buckets)
        words = (
            f"unexpected shape for model '{self.name}': expected sizes within one of {allowed}, "
            f"got {dict(sizes)}"
        )
        # What may grow is made large enough; of the rest the first that no bucket takes is named.
        for dim, size in sizes.items():
            if not any(fits(bucket, {dim: size}, self.growing) for bucket in self.buckets):
                spans = [bucket.dims[dim] for bucket in self.buckets]
                ranges = " or ".join(f"{span.min}..{span.max}" for span in spans)
                is_fixed = dim not in self.growing and size < max(span.max for span in spans)
                padded = ", as it cannot be padded" if is_fixed else ""
                return f"{words}; dimension '{dim}' is {size}, allowed is {ranges}{padded}"
        return words


def fits(bucket: Bucket, sizes: Mapping[str, int], growing: Collection[str]) -> bool:
    """Whether a bucket takes sizes: no larger ones, and smaller ones only where they may grow.

    Padding anything else would change the answer, whatever kind of engine it is for. An empty
    dimension does not grow: the bucket has to begin at 0 there.

    Args:
        bucket: with a span of each dynamic dimension.
        sizes: of the request; dimensions that the bucket lacks are not compared.
        growing: dimensions that may be padded.
    """
    return all(
        (min(span.min, 1) if dim in growing else span.min) <= sizes[dim] <= span.max
        for dim, span in bucket.dims.items()
        if dim in sizes
    )
