"""How versions of a model share the requests that name none: the rule of gateways and reports."""

from collections.abc import Iterable, Mapping


def shares_among(weights: Mapping[int, float], versions: Iterable[int]) -> dict[int, float]:
    """The share of each version that gets any; they add up to 1, or are none without versions.

    Args:
        weights: by version; weights of versions that are not among `versions` go to the others.
        versions: those that can answer. Without weights the newest gets all.
    """
    present = tuple(versions)
    left = {each: weights[each] for each in present if weights.get(each, 0.0) > 0}
    if not left:
        return {max(present): 1.0} if present else {}
    # Of the heaviest, as the sum of the largest numbers would be infinite.
    heaviest = max(left.values())
    total = sum(weight / heaviest for weight in left.values())
    return {version: weight / heaviest / total for version, weight in left.items()}
