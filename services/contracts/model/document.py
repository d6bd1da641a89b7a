"""The base of everything stored or read as text: frozen, strict, canonical."""

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """An immutable record with one JSON form; unknown fields are refused when it is read."""

    # What validates is built at the first use: a command reads few of the records that it imports.
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True
    )

    def canonical_json(self) -> bytes:
        """The one byte string of this record: keys sorted, no spaces, UTF-8."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Read a record; raises pydantic.ValidationError naming the wrong field."""
        return cls.model_validate_json(data)


def canonical_json(value: Any) -> bytes:
    """Serialise plain data so that equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()
