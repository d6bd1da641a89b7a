"""The sizes that a dimension of a model may take."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from services.contracts.model.document import Document
from services.contracts.model.recipe import Bucket, DimRange


class DimLimits(Document):
    """The sizes that a dynamic dimension may take: min <= size <= max."""

    min: int = Field(ge=0)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"expected min <= max, got {self.min} and {self.max}")
        return self

    def clipped(self, span: DimRange) -> DimRange:
        """What of a range is within the limits; the nearest limit alone where nothing is."""
        low, high = (max(self.min, min(end, self.max)) for end in (span.min, span.max))
        return DimRange(min=low, opt=max(low, min(span.opt, high)), max=high)


def limits_fault(bucket: Bucket, limits: Mapping[str, DimLimits]) -> str:
    """Which range of a bucket leaves its limits, found and allowed; "" when none does."""
    for name, span in bucket.dims.items():
        limit = limits.get(name)
        if limit and not limit.min <= span.min <= span.max <= limit.max:
            return (
                f"'{name}' is {span.min}..{span.max}, but the source allows {limit.min}.."
                f"{limit.max} (its dim_limits): correct either"
            )
    return ""
