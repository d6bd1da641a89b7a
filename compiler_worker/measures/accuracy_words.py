"""How close the answers of a recipe's engines must be, in words and numbers, for its owner."""

from collections.abc import Iterable, Iterator

from compiler_worker.measures.default_tolerances import DEFAULT_TOLERANCES
from services.contracts.hardware.kinds import Precision
from services.contracts.model.recipe import Recipe

_NAMES = {
    "rel_l2": "relative L2",
    "max_abs": "largest error",
    "cosine_distance": "1 - cosine",
}


def distances(precision: Precision, recipe: Recipe) -> dict[str, float]:
    """The largest distances to the original at which an engine of a precision is proven."""
    bounds = recipe.tolerances.get(precision, DEFAULT_TOLERANCES[precision])
    return bounds.model_dump(include=set(_NAMES))


def accuracy_words(recipe: Recipe, precisions: Iterable[Precision]) -> Iterator[str]:
    """A line for the recipe's word, and one for each precision."""
    yield f"accuracy: {recipe.accuracy}{_order_words(recipe)}"
    for precision in precisions:
        known = distances(precision, recipe)
        bounds = ", ".join(f"{name} {known[key]:g}" for key, name in _NAMES.items())
        whose = "by the recipe" if precision in recipe.tolerances else "by default"
        yield f"{precision}: at most {bounds} from the original ({whose})"


def _order_words(recipe: Recipe) -> str:
    tasks = [task.metric.replace("_", "-") for task in recipe.tasks]
    if recipe.ranking:
        tasks.append(f"ranking of '{recipe.ranking.output}'")
    return f"; engines also pass {', '.join(tasks)}" if tasks else ""
