"""Which requests a replica keeps rows of: opt-in, part of a recipe."""

from typing import Self

from pydantic import Field, model_validator

from services.contracts.model.document import Document


class Sampling(Document):
    """Rows of answered requests that replicas keep in the store; `{}` takes what stands here.

    Attributes:
        rate_per_s: rows that each replica keeps at most, over a window; all rows of a window are
            as likely to be kept, within the bucket that they belong to.
        window_s: seconds after which what was kept is written.
        max_samples, max_mib, max_age_h: of all that the store keeps of the model, however many
            replicas there are; the oldest windows go first.
        drop: inputs of which nothing is kept.
        hash: inputs of which a keyed hash of each row is kept in place of its values.
    """

    rate_per_s: float = Field(default=0.2, gt=0, le=1000)
    window_s: float = Field(default=300.0, ge=1)
    max_samples: int = Field(default=4096, ge=1)
    max_mib: float = Field(default=64.0, gt=0)
    max_age_h: float = Field(default=168.0, gt=0)
    drop: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()

    @property
    def rows_per_window(self) -> int:
        """Rows that one replica keeps of one window."""
        return min(max(round(self.rate_per_s * self.window_s), 1), self.max_samples)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if both := sorted({*self.drop} & {*self.hash}):
            raise ValueError(f"input '{both[0]}' is in drop and in hash; expected one of them")
        return self
