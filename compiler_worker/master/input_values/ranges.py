"""Which numbers mean something at an input: what trees compare with, and what scalers expect.

Drawn around zero, ages and prices would leave a tree at one leaf, and a scaled feature far from
what the model was fitted to: all answers would be alike.
"""

import numpy as np
import onnx_ir as ir

from compiler_worker.master.input_values.input_uses import InputUses, Rule
from compiler_worker.master.input_values.integer_rules import RULES
from compiler_worker.master.input_values.list_uses import (
    MOST_PLACES,
    MOVES,
    Known,
    ListUses,
    few_of,
)
from compiler_worker.master.input_values.scaled_features import (
    ScaledFeatures,
    scaled_by,
    scaler_of,
    table,
)
from compiler_worker.master.input_values.spans import Spans
from compiler_worker.master.input_values.tree_splits import TREES, tree_splits
from compiler_worker.master.input_values.value_shapes import known_shape
from services.contracts.model.input_values import Ranges

# Of more thresholds, as many of each part; of many columns fewer, and their ends at least.
_MOST = 64
# In what a scaler gives: spreads, or widths of the whole range.
_REACH = 2.0
# How far beyond the outermost thresholds is drawn, in parts of them.
_BEYOND = 1 / 8
_LEAST_BEYOND = 1e-30


def ranges(model: ir.Model, value: ir.Value) -> Ranges:
    """What is to be drawn for an input, one list for all places or one for each of the last axis.

    Args:
        model: in its normal form, with shapes inferred.
        value: its input, of numbers: integers may be cast before they are compared or scaled.

    Returns:
        As `InputValues.ranges` has them.
    """
    dtype = value.dtype
    if dtype is None or not (dtype.is_integer() or dtype.is_floating_point()):
        return ()
    # All of a type of eight bits is drawn, as pictures have it.
    if dtype in (ir.DataType.INT8, ir.DataType.UINT8):
        return ()
    lists = [_held(each, dtype) for each in _NumberLists(model, _RULES).by_place(value)]
    return few_of(lists, _MOST, _evenly_kept)


class _NumberLists(ListUses):
    """Lists of ascending numbers; of two uses all count."""

    def both(self, found: Spans, other: Spans) -> Spans:
        """What is known of either use."""
        sides = np.broadcast_arrays(self.lists_at(found), self.lists_at(other))
        merged = [_merged({*lists}) for lists in zip(*(s.flat for s in sides), strict=True)]
        return self.spans_of(merged, sides[0].shape)

    def joined(self, lists: set[Known]) -> Known:
        return () if () in lists else _merged(lists)

    def scaled(self, operand: ir.Value, scaling: ScaledFeatures) -> Spans:
        """Those of what a scaler gives, or else of its usual sizes, as they are before it."""
        found = self.lists_at(self.spans(scaling.output))
        places = np.broadcast(found, scaling.factor, scaling.offset)
        shape = known_shape(operand)
        if shape is None or places.size > MOST_PLACES:
            return Spans.of()
        lists = [_unscaled(*each, is_scaler=scaling.is_scaler) for each in places]
        return self.spans_of(lists, places.shape).fitted(shape, is_strict=True)


def _merged(lists: set[Known]) -> Known:
    return tuple(sorted({number for known in lists for number in known}))


def _unscaled(known: Known, factor: float, offset: float, *, is_scaler: bool) -> Known:
    """Numbers before they are scaled; of a scaler with none behind it, its usual sizes."""
    if is_scaler and not known:
        # What is of spread 1 around zero as it is, is drawn so.
        is_usual = 0.5 <= abs(factor) <= 2 and abs(offset) <= 1
        known = () if is_usual else (-_REACH, _REACH)
    if not np.isfinite(1 / factor if factor else np.inf):
        return ()
    return tuple(sorted((number - offset) / factor for number in known))


def _held(known: Known, dtype: ir.DataType) -> Known:
    """Within what the input's own type holds."""
    # Not of a scaler that divides by the spread of a constant column, for one.
    if not known or not np.isfinite(known).all():
        return ()
    ends = (known[0], known[-1])
    if dtype.is_integer():
        ends = (float(np.floor(known[0])), float(np.ceil(known[-1])))
    within = np.clip([ends[0], *known[1:-1], ends[1]], float(dtype.min), float(dtype.max))
    # As a record shows them: a threshold of float32 has no more digits.
    numbers = dict.fromkeys(float(f"{number:.9g}") for number in within)
    return tuple(numbers) if len(numbers) > 1 else ()


def _evenly_kept(known: Known, most: int) -> Known:
    if len(known) <= most:
        return known
    return tuple(known[place] for place in np.linspace(0, len(known) - 1, most).astype(int))


def _trees(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    assert isinstance(walk, _NumberLists)
    thresholds = tree_splits(node).thresholds
    return walk.columns(node, {f: _with_ends(known) for f, known in thresholds.items()})


def _with_ends(known: tuple[float, ...]) -> Known:
    """As far beyond the outermost thresholds as between two of them, and far enough for a type."""
    low = known[0]
    high = known[-1]
    beyond = max((high - low) / len(known), abs(low) * _BEYOND, abs(high) * _BEYOND)
    # LightGBM tells 0 from all above it by a threshold of 1e-35.
    if beyond < _LEAST_BEYOND:
        beyond = 1.0
    return (low - beyond, *known, high + beyond)


def _support_vectors(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    assert isinstance(walk, _NumberLists)
    vectors = table(node, "support_vectors")
    ends = zip(vectors.min(axis=0), vectors.max(axis=0), strict=True) if len(vectors) else ()
    return walk.columns(node, {f: (low, high) for f, (low, high) in enumerate(ends) if low < high})


def _linear(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    """As far as each feature alone moves the scores over their bounds."""
    assert isinstance(walk, _NumberLists)
    weights = np.abs(table(node, "coefficients")).max(axis=0, initial=0.0)
    intercepts = node.attributes.get("intercepts")
    most = max(map(abs, intercepts.as_floats()), default=0.0) if intercepts else 0.0
    reaches = {f: (most + _REACH) / weight for f, weight in enumerate(weights) if weight}
    # What is drawn around zero reaches as far.
    far = {f: reach for f, reach in reaches.items() if not _REACH / 2 <= reach <= 2 * _REACH}
    return walk.columns(node, {f: (-reach, reach) for f, reach in far.items()})


def _scaled(walk: InputUses, node: ir.Node, index: int) -> Spans:
    assert isinstance(walk, _NumberLists)
    operand = node.inputs[index]
    scaling = scaler_of(node) if node.domain else scaled_by(node, index)
    return walk.scaled(operand, scaling) if operand is not None and scaling else Spans.of()


_RULES: dict[str, Rule] = {
    **MOVES,
    **dict.fromkeys(TREES, _trees),
    **dict.fromkeys(("Add", "Div", "Mul", "Scaler", "Sub"), _scaled),
    **dict.fromkeys(("Clip", "Imputer"), RULES["Identity"]),
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), _support_vectors),
    "LinearClassifier": _linear,
}
