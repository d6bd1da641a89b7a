"""What trees of ai.onnx.ml compare their features with."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

# TreeEnsemble has these as numbers, from 0 on; the ops before it by name, and leaves among them.
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_NUM_ORDERED = 4
TREES = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")


class Splits(NamedTuple):
    """By feature, in ascending order: thresholds, and values that it equals or not."""

    thresholds: dict[int, tuple[float, ...]]
    equals: dict[int, tuple[float, ...]]


# Asked for again for each input of a model that has one for each feature.
@lru_cache(maxsize=1)
def tree_splits(node: ir.Node) -> Splits:
    """The splits of all trees of a node; sets of members are none."""
    modes = _modes(node)
    features = _numbers(node, "nodes_featureids")
    values = _numbers(node, "nodes_splits", "nodes_values_as_tensor", "nodes_values")
    if not len(modes) == len(features) == len(values):
        return Splits({}, {})
    is_ordered = (modes >= 0) & (modes < _NUM_ORDERED) & np.isfinite(values)
    is_equal = (modes >= _NUM_ORDERED) & (modes < len(_MODES))
    parts = (_by_feature(features[part], values[part]) for part in (is_ordered, is_equal))
    return Splits(*parts)


def _by_feature(
    features: NDArray[np.float64], values: NDArray[np.float64]
) -> dict[int, tuple[float, ...]]:
    # Forests have millions of nodes: sorted once, whatever the number of features.
    order = np.lexsort((values, features))
    names, starts = np.unique(features[order], return_index=True)
    lists = np.split(values[order], starts[1:]) if names.size else []
    return {
        int(name): tuple(np.unique(each).tolist()) for name, each in zip(names, lists, strict=True)
    }


def _modes(node: ir.Node) -> NDArray[np.float64]:
    attribute = node.attributes.get("nodes_modes")
    if attribute is not None and attribute.type is ir.AttributeType.STRINGS:
        words = attribute.as_strings()
        return np.array([_MODES.index(word) if word in _MODES else -1 for word in words], float)
    return _numbers(node, "nodes_modes")


def _numbers(node: ir.Node, *names: str) -> NDArray[np.float64]:
    """Of the first of several attributes that a node has."""
    attribute = next((node.attributes[name] for name in names if name in node.attributes), None)
    if attribute is None:
        return np.empty(0)
    match attribute.type:
        case ir.AttributeType.TENSOR:
            return np.asarray(attribute.as_tensor().numpy(), np.float64).reshape(-1)
        case ir.AttributeType.INTS:
            return np.asarray(attribute.as_ints(), np.float64)
        case _:
            return np.asarray(attribute.as_floats(), np.float64)
