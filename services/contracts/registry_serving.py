"""Which models are to be served: all that the store has, but those that somebody unloaded.

Each change is a numbered document, and the last one counts. A version that is published later
changes nothing: a model that was unloaded stays so until it is loaded.
"""

from datetime import UTC, datetime

from services.contracts.document import Document
from services.contracts.records import RecordKeeper, numbered_key, revision_numbers

_PREFIX = "serving/"


class ServingChange(Document):
    """That a model is to be served from now on, or is not.

    Attributes:
        is_served: whether replicas of it are wanted.
    """

    name: str
    is_served: bool
    created_at: str


class ServingRegistry(RecordKeeper):
    """Notes who is unloaded, and finds them."""

    def unloaded_models(self) -> set[str]:
        """Names of the models that were unloaded and not loaded since."""
        keys = self._records.keys(_PREFIX)
        names = {key.split("/")[1] for key in keys}
        return {name for name in names if not self._is_served(name, keys)}

    def set_served(self, name: str, *, is_served: bool) -> bool:
        """Note that a model is to be served, or not; False when it was noted before."""
        if self._is_served(name, self._records.keys(_prefix(name))) is is_served:
            return False
        change = ServingChange(
            name=name,
            is_served=is_served,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        self._records.append(_prefix(name), change)
        return True

    def _is_served(self, name: str, keys: list[str]) -> bool:
        prefix = _prefix(name)
        numbers = revision_numbers(keys, prefix)
        if not numbers:
            return True
        return self._records.read(numbered_key(prefix, max(numbers)), ServingChange).is_served


def _prefix(name: str) -> str:
    return f"{_PREFIX}{name}/"
