"""Numbered versions of names below a folder of the store, and which of them were removed.

Nothing is deleted: a removed version gets a document of its own, under the version's number,
and is listed no more. Its number is never given again.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from services.contracts.errors import AlreadyPublishedError, InvalidRequestError, NotFoundError
from services.contracts.external.external_model import ExternalModel
from services.contracts.model.manifest import ModelRemoval, ModelVersion
from services.contracts.registry.records import RecordKeeper, numbered_key, revision_numbers
from services.contracts.text.moments import timestamp

# Of models with a master.
MODELS_FOLDER: Final = "models"
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_VersionT = TypeVar("_VersionT", ModelVersion, ExternalModel)


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

    def _add(
        self,
        folder: str,
        draft: _VersionT,
        is_repeat: Callable[[_VersionT, _VersionT], bool],
        check: Callable[[Sequence[int]], None] = lambda kept: None,  # noqa: ARG005
    ) -> _VersionT:
        """Publish a draft under the next number; one that repeats the latest returns the latest.

        Args:
            folder: of the store.
            draft: number and time are new.
            is_repeat: whether the latest version and the new one are the same.
            check: called with the numbers that were not removed; raises where nothing may follow.
        """
        while True:
            kept, highest = self._numbers(folder, draft.name)
            changed = {"version": highest + 1, "created_at": timestamp()}
            version = draft.model_copy(update=changed)
            if highest in kept:
                key = version_key(folder, draft.name, highest)
                latest = self._records.read(key, type(draft))
                if is_repeat(latest, version):
                    return latest
            check(kept)
            # Another publisher may take the number: then what it published is compared with.
            with suppress(AlreadyPublishedError):
                self._records.create(version_key(folder, draft.name, highest + 1), version)
                return version

    def _remove(self, folder: str, name: str, numbers: Iterable[int], who: str) -> None:
        for number in numbers:
            removal = ModelRemoval(name=name, version=number, who=who, created_at=timestamp())
            # Another may have removed it meanwhile: it is gone, as was asked.
            with suppress(AlreadyPublishedError):
                self._records.create(numbered_key(removals_prefix(folder, name), number), removal)


def check_model_name(name: str) -> None:
    """Raise InvalidRequestError for a name that cannot stand in a key."""
    if not _MODEL_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"model name '{name}': expected 1 to 100 of a-z 0-9 _ . - with a letter or digit first"
        )


def chosen_numbers(name: str, version: int | None, numbers: list[int]) -> list[int]:
    """This version of a model alone, or all where none is given; raises NotFoundError.

    Args:
        name: of the model.
        version: None for all.
        numbers: of the versions that there are.
    """
    if version is None:
        return numbers
    if version not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise NotFoundError(f"model '{name}' has no version {version}; there are: {known}")
    return [version]


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
