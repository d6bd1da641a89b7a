"""Numbered versions of names below a folder of the store, and which of them were removed.

Nothing is deleted: a removed version gets a document of its own, under the version's number,
and is listed no more. Its number is never given again.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from services.contracts.errors import AlreadyPublishedError, InvalidRequestError
from services.contracts.model.manifest import ModelRemoval
from services.contracts.registry.records import RecordKeeper, numbered_key, revision_numbers

# Of models with a master.
MODELS_FOLDER: Final = "models"
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


class VersionKeeper(RecordKeeper):
    """Base of what keeps numbered versions."""

    def _names(self, folder: str) -> list[str]:
        """Names that have a version left, sorted."""
        found: dict[str, set[str]] = {}
        removed: dict[str, set[str]] = {}
        for key in self._records.keys(f"{folder}/"):
            _, name, what, number = key.split("/", 3)
            (removed if what == "removed" else found).setdefault(name, set()).add(number)
        return sorted(name for name in found if found[name] - removed.get(name, set()))

    def _numbers(self, folder: str, name: str) -> tuple[list[int], int]:
        """The versions that were not removed, ascending; and the highest that ever was."""
        keys = self._records.keys(f"{folder}/{name}/")
        found = revision_numbers(keys, f"{folder}/{name}/versions/")
        removed = set(revision_numbers(keys, removals_prefix(folder, name)))
        return [number for number in found if number not in removed], max(found, default=0)

    def _remove(self, folder: str, name: str, numbers: Iterable[int], who: str) -> None:
        for number in numbers:
            removal = ModelRemoval(
                name=name,
                version=number,
                who=who,
                created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            )
            # Another may have removed it meanwhile: it is gone, as was asked.
            with suppress(AlreadyPublishedError):
                self._records.create(numbered_key(removals_prefix(folder, name), number), removal)


def check_model_name(name: str) -> None:
    """Raise InvalidRequestError for a name that cannot stand in a key."""
    if not _MODEL_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"model name '{name}': expected 1 to 100 of a-z 0-9 _ . - with a letter or digit first"
        )


def version_key(folder: str, name: str, version: int) -> str:
    """The key of a version's document.

    Args:
        folder: of the store.
        name: of the model.
        version: its number.
    """
    return numbered_key(f"{folder}/{name}/versions/", version)


def removals_prefix(folder: str, name: str) -> str:
    """Below it are the removals of versions, under their numbers."""
    return f"{folder}/{name}/removed/"
