"""Which categories an input holds: those that encoders of ONNX-ML behind it know.

scikit-learn's OneHotEncoder refuses any other by default, and its OrdinalEncoder makes one number
of all others: drawn from anything else, answers would fail or be alike.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler_worker.master.input_values.input_uses import InputUses, Rule
from compiler_worker.master.input_values.list_uses import MOVES, ListUses, few_of
from compiler_worker.master.input_values.spans import Spans
from compiler_worker.master.input_values.tree_splits import TREES, tree_splits
from compiler_worker.master.samples import MAX_WORD_CHARACTERS
from services.contracts.model.input_values import Category, Choices

# Of a longer list, as of words or places, some; evenly, as neighbours may be alike.
_MOST = 256
# Strings and integers, by the name of an encoder's attribute.
_LISTS = ("cats_strings", "cats_int64s", "keys_strings", "keys_int64s")
# As a category that an encoder takes for none of its own.
_UNKNOWN = "unknown"


def categories(model: ir.Model, value: ir.Value) -> Choices:
    """What an input may hold, one list for all places or one for each place of the last axis.

    The last of a list is one that its encoder does not know, where it takes those too.

    Args:
        model: in its normal form, with shapes inferred.
        value: its input, of any type: categories that are numbers may come as floats.

    Returns:
        Nothing where no place leads to an encoder; a list is empty where its place leads to none,
        or to several that know other categories.
    """
    lists = [_held(each, value) for each in _CategoryLists(model, _RULES).by_place(value)]
    return few_of(lists, _MOST, _evenly_kept)


class _CategoryLists(ListUses):
    """The lists of encoders; of two that know other ones there is none."""

    def encoded(self, node: ir.Node) -> Spans:
        """The list of an encoder."""
        known = next((each for n in _LISTS if (each := _list(node.attributes.get(n)))), ())
        zeros = node.attributes.get("zeros")
        if known and (node.op_type != "OneHotEncoder" or zeros is None or zeros.as_int()):
            known = (*known, _other_than(known))
        return self.spans_of([known])


def _list(attribute: ir.Attr | None) -> tuple[Category, ...]:
    if attribute is None:
        return ()
    is_strings = attribute.type is ir.AttributeType.STRINGS
    return tuple(attribute.as_strings()) if is_strings else tuple(attribute.as_ints())


def _other_than(known: Sequence[Category]) -> Category:
    """One that is not among them."""
    numbers = [each for each in known if isinstance(each, int)]
    if numbers:
        return max(numbers) + 1
    other = _UNKNOWN
    while other in known:
        other += "_"
    return other


def _held(known: Sequence[Category], value: ir.Value) -> tuple[Category, ...]:
    """Those that the input's own type holds: it may be cast before its encoder."""
    if value.dtype is None:
        return ()
    if value.dtype is ir.DataType.STRING:
        words = (each for each in known if isinstance(each, str))
        return tuple(each for each in words if len(each) <= MAX_WORD_CHARACTERS)
    dtype = value.dtype.numpy()
    return tuple(each for each in known if isinstance(each, int) and _is_held(each, dtype))


def _is_held(number: int, dtype: np.dtype[np.generic]) -> bool:
    try:
        # Of float16 it may be infinite.
        with np.errstate(over="ignore"):
            return int(np.array(number).astype(dtype)) == number
    except OverflowError:
        return False


def _evenly_kept(known: tuple[Category, ...], most: int) -> tuple[Category, ...]:
    step = -(-len(known) // most) or 1
    # The last may be the one that is not known.
    return known if step == 1 else (*known[:-1:step], known[-1])


def _encoder(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    assert isinstance(walk, _CategoryLists)
    return walk.encoded(node)


def _trees(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    """Features that are equal to whole numbers, and never compared otherwise, are categories."""
    assert isinstance(walk, _CategoryLists)
    splits = tree_splits(node)
    lists = {
        feature: (*map(int, known), int(known[-1]) + 1)
        for feature, known in splits.equals.items()
        if feature not in splits.thresholds and all(each.is_integer() for each in known)
    }
    return walk.columns(node, lists)


_RULES: dict[str, Rule] = {
    **MOVES,
    **dict.fromkeys(TREES, _trees),
    **dict.fromkeys(("LabelEncoder", "OneHotEncoder"), _encoder),
}
