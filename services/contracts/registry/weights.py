"""How the versions of a model share the requests that name none, in the store.

Each change is a numbered document, and the last one counts. Without any, and after one with no
weights, the newest version that is ready gets them all.
"""

import math
from collections.abc import Mapping

from services.contracts.errors import InvalidRequestError
from services.contracts.model.document import Document
from services.contracts.registry.model_versions import ModelRegistry
from services.contracts.registry.records import numbered_key
from services.contracts.text.moments import timestamp


class VersionWeights(Document):
    """Shares of the requests for a model that name no version.

    Attributes:
        weights: by version, relative to each other; versions that are not named get none.
        who: asked for it; "" when unknown.
    """

    name: str
    weights: dict[int, float]
    who: str = ""
    created_at: str


class WeightRegistry(ModelRegistry):
    """Notes the weights of versions, and finds them."""

    def version_weights(self, name: str) -> dict[int, float]:
        """Weights above 0 by version; empty when the newest shall get everything."""
        numbers = self._records.numbers(_prefix(name))
        if not numbers:
            return {}
        weights = self._records.read(numbered_key(_prefix(name), max(numbers)), VersionWeights)
        return {version: weight for version, weight in weights.weights.items() if weight > 0}

    def weight_changes(self, name: str) -> list[VersionWeights]:
        """All weights that a model's versions ever had, oldest first."""
        return self._records.revisions(_prefix(name), VersionWeights)

    def set_version_weights(
        self, name: str, weights: Mapping[int, float], *, who: str = ""
    ) -> None:
        """Note the weights of a model's versions, in place of all former ones.

        Args:
            name: of the model.
            weights: by version; relative to each other. Empty gives all requests to the newest
                version.
            who: asked for it; kept in the record.

        Raises:
            NotFoundError: no such model or version.
            InvalidRequestError: a weight is negative or endless, or all are 0.
        """
        for version in weights or (None,):
            self.require_version(name, version)
        if any(not 0 <= weight < math.inf for weight in weights.values()):
            raise InvalidRequestError(
                f"model '{name}': weights {_listed(weights)}; expected numbers of 0 or more"
            )
        if weights and not any(weights.values()):
            raise InvalidRequestError(
                f"model '{name}': weights {_listed(weights)}; expected one above 0, or no weights "
                "at all, which gives every request to the newest version"
            )
        change = VersionWeights(name=name, weights=dict(weights), who=who, created_at=timestamp())
        self._records.append(_prefix(name), change)


def _prefix(name: str) -> str:
    return f"weights/{name}/"


def _listed(weights: Mapping[int, float]) -> str:
    return " ".join(f"{version}={weight:g}" for version, weight in sorted(weights.items()))
