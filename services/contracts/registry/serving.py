"""Which models are to be served: all in the store, but those that were unloaded.

Each change is a numbered document, and the last one counts. A version that is published later
changes nothing: a model that was unloaded stays so until it is loaded.
"""

import logging

from services.contracts.errors import StoreError
from services.contracts.model.document import Document
from services.contracts.registry.records import RecordKeeper, numbered_key, revision_numbers
from services.contracts.text.moments import timestamp

_logger = logging.getLogger(__name__)

_PREFIX = "serving/"


class ServingChange(Document):
    """That a model is to be served from now on, or is not.

    Attributes:
        is_served: whether replicas of it are wanted.
        who: asked for it; "" when unknown.
    """

    name: str
    is_served: bool
    who: str = ""
    created_at: str


class ServingRegistry(RecordKeeper):
    """Keeps which models are unloaded, and finds them."""

    def unloaded_models(self) -> set[str]:
        """Names of the models that were unloaded and not loaded since."""
        keys = self._records.keys(_PREFIX)
        names = {key.split("/")[1] for key in keys}
        return {name for name in names if not self._is_served(name, keys)}

    def serving_changes(self, name: str) -> list[ServingChange]:
        """All loads and unloads of a model, oldest first."""
        return self._records.revisions(_prefix(name), ServingChange)

    def set_served(self, name: str, *, is_served: bool, who: str = "") -> bool:
        """Note that a model is to be served or not.

        Args:
            name: of the model; whether it exists is not checked.
            is_served: False unloads it.
            who: asked for it; kept in the record.

        Returns:
            False when that was its state before: nothing is noted then.
        """
        if self._is_served(name, self._records.keys(_prefix(name))) is is_served:
            return False
        change = ServingChange(name=name, is_served=is_served, who=who, created_at=timestamp())
        self._records.append(_prefix(name), change)
        return True

    def _is_served(self, name: str, keys: list[str]) -> bool:
        prefix = _prefix(name)
        for number in reversed(revision_numbers(keys, prefix)):
            try:
                return self._records.read(numbered_key(prefix, number), ServingChange).is_served
            except StoreError as error:
                # Of a newer release, which must not keep the other models from serving.
                _logger.warning("model '%s' stays as the change before says: %s", name, error)
        return True


def _prefix(name: str) -> str:
    return f"{_PREFIX}{name}/"
