"""Which precisions a model version has engines built in on a generation, and how close they are."""

from collections.abc import Iterator
from typing import Any

from compiler_worker.measures.accuracy_words import accuracy_words, distances
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import Generation
from services.contracts.hardware.kinds import Precision
from services.contracts.model.manifest import ModelVersion
from services.contracts.model.precisions import precisions_on


def precision_document(version: ModelVersion, generation: str) -> dict[str, Any]:
    """By precision, why no engine is built in it, or the distances at which one is proven."""
    try:
        parsed = Generation.parse(generation)
    except InvalidRequestError:
        # A node of a newer release reports it.
        return {"accuracy": version.recipe.accuracy.value, "precisions": {}}
    found = precisions_on(parsed, version.recipe, has_calibration=version.calibration is not None)
    precisions = {
        precision.value: {"not_built": reason}
        if reason
        else {"distances": distances(precision, version.recipe)}
        for precision, reason in found.items()
    }
    return {"accuracy": version.recipe.accuracy.value, "precisions": precisions}


def precision_lines(case: dict[str, Any], version: ModelVersion) -> Iterator[str]:
    """The recipe's word for accuracy, then a line for each precision."""
    known = {Precision(name): each.get("not_built") for name, each in case["precisions"].items()}
    yield from accuracy_words(version.recipe, (each for each in known if not known[each]))
    yield from (f"{name}: not built: {reason}" for name, reason in known.items() if reason)
