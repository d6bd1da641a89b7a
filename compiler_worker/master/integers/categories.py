"""Which categories an input holds: those that encoders of ONNX-ML behind it know.

scikit-learn's OneHotEncoder refuses any other by default, and its OrdinalEncoder makes one number
of all others: drawn from anything else, answers would fail or be alike.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from compiler_worker.master.integers.integer_rules import RULES, selected
from compiler_worker.master.integers.integer_uses import IntegerUses, Rule
from compiler_worker.master.integers.spans import Spans
from compiler_worker.master.samples import MAX_WORD_CHARACTERS
from services.contracts.model.input_values import Category, Choices

# Of a longer list, as of words or places, some; evenly, as neighbours may be alike.
_MOST = 256
_MOST_OF_ALL_PLACES = 4096
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
    if value.shape is None or not len(value.shape):
        return ()
    uses = _Uses(model)
    found = uses.spans(value)
    if found.is_open:
        return ()
    by_place = found.joined(range(found.low.ndim - 1), is_strict=True)
    is_one = (found.low == by_place.low) & (found.high == by_place.high)
    is_one &= found.low == found.high
    is_known = is_one.reshape(-1, by_place.low.size).all(axis=0)
    numbers = zip(by_place.low.flat, is_known.flat, strict=True)
    lists = [_held(uses.lists[int(n)] if is_list else (), value) for n, is_list in numbers]
    alike = lists[:1] if len(set(lists)) == 1 else lists
    most = max(2, min(_MOST, _MOST_OF_ALL_PLACES // len(alike)))
    return tuple(_some(each, most) for each in alike) if any(alike) else ()


class _Uses(IntegerUses):
    """The same walk, whose spans are numbers of lists instead of integers that the input holds.

    A list is of the places that surely lead to its encoder, and of no others.
    """

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model, _RULES, is_strict=True)
        self.lists: list[tuple[Category, ...]] = []

    def partly(self, _: Spans) -> Spans:
        """Nothing is known of which elements are used."""
        return Spans.of()

    def moved(self, found: Spans) -> Spans:
        """Only what is so of all places."""
        return found if found.is_uniform else Spans.of()

    def encoded(self, node: ir.Node) -> Spans:
        """The list of an encoder."""
        known = next((each for n in _LISTS if (each := _list(node.attributes.get(n)))), ())
        if not known:
            return Spans.of()
        zeros = node.attributes.get("zeros")
        if node.op_type != "OneHotEncoder" or zeros is None or zeros.as_int():
            known = (*known, _other_than(known))
        if known not in self.lists:
            self.lists.append(known)
        number = self.lists.index(known)
        return Spans.of(number, number)


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


def _some(known: tuple[Category, ...], most: int) -> tuple[Category, ...]:
    step = -(-len(known) // most) or 1
    # The last may be the one that is not known.
    return known if step == 1 else (*known[:-1:step], known[-1])


def _encoder(walk: IntegerUses, node: ir.Node, _index: int) -> Spans:
    assert isinstance(walk, _Uses)
    return walk.encoded(node)


def _cast(walk: IntegerUses, node: ir.Node, _index: int) -> Spans:
    return walk.spans(node.outputs[0])


def _concat(walk: IntegerUses, node: ir.Node, index: int) -> Spans:
    """Places behind one of unknown size are not known."""
    sizes = [dim for each in node.inputs if each and each.shape for dim in [*each.shape][1:]]
    is_fixed = all(isinstance(size, int) for size in sizes) and node.attributes["axis"].as_int()
    found = RULES["Concat"](walk, node, index)
    return found if is_fixed or found.is_uniform else Spans.of()


def _gather(walk: IntegerUses, node: ir.Node, index: int) -> Spans:
    """Of columns that are taken apart; ArrayFeatureExtractor takes them of the last axis."""
    axis = node.attributes.get("axis")
    default = -1 if node.domain else 0
    return selected(walk, node, axis.as_int() if axis else default) if index == 0 else Spans.of()


_MOVES = ("Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose")
_RULES: dict[str, Rule] = {
    **{name: RULES[name] for name in (*_MOVES, "Unsqueeze")},
    **dict.fromkeys(("ArrayFeatureExtractor", "Gather"), _gather),
    **dict.fromkeys(("LabelEncoder", "OneHotEncoder"), _encoder),
    "Cast": _cast,
    "Concat": _concat,
}
