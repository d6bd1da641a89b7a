"""External models in the store.

They have names and numbers like models with a master, and documents of their own: what reads
versions of models to build, export or sample them never meets one. A name is of one kind for
good, as weights and loads are kept by it.
"""

from typing import Final

from services.contracts.errors import InvalidRequestError
from services.contracts.external.external_model import ExternalModel
from services.contracts.registry.numbered_versions import (
    MODELS_FOLDER,
    VersionKeeper,
    check_model_name,
    chosen_numbers,
    version_key,
)

EXTERNAL_FOLDER: Final = "external"


class ExternalRegistry(VersionKeeper):
    """Publishes numbered versions of external models, and finds them."""

    def external_names(self) -> list[str]:
        """Names of those that have a version left, sorted."""
        return self._names(EXTERNAL_FOLDER)

    def external_numbers(self, name: str) -> list[int]:
        """Numbers of the versions that were not removed, ascending; none of another name."""
        check_model_name(name)
        return self._numbers(EXTERNAL_FOLDER, name)[0]

    def external_versions(self, name: str) -> list[ExternalModel]:
        """All versions that were not removed, oldest first."""
        return [self.external_version(name, number) for number in self.external_numbers(name)]

    def external_version(self, name: str, number: int) -> ExternalModel:
        """One version; raises NotFoundError."""
        return self._records.read(version_key(EXTERNAL_FOLDER, name, number), ExternalModel)

    def add_external_version(self, draft: ExternalModel) -> ExternalModel:
        """Publish the next version; one that repeats the latest returns the latest.

        Raises InvalidRequestError for a name that a model with a master has.
        """
        check_model_name(draft.name)
        if self._numbers(MODELS_FOLDER, draft.name)[1]:
            raise InvalidRequestError(
                f"model '{draft.name}' has, or had, versions with a master, and a name is of one "
                "kind for good; choose another one"
            )
        return self._add(EXTERNAL_FOLDER, draft, _is_repeat)

    def remove_external(self, name: str, version: int | None = None, *, who: str = "") -> list[int]:
        """Have versions served no more, and return which.

        Args:
            name: of the model.
            version: None removes all versions.
            who: asked for it; kept in the removal record.

        Raises:
            NotFoundError: there is no such version.
        """
        removed = chosen_numbers(name, version, self.external_numbers(name))
        self._remove(EXTERNAL_FOLDER, name, removed, who)
        return removed


def _is_repeat(latest: ExternalModel, version: ExternalModel) -> bool:
    same = {"version": latest.version, "created_at": latest.created_at}
    return version.model_copy(update=same) == latest
