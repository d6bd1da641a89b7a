"""Which categories an input holds: those that encoders of ONNX-ML behind it know.

scikit-learn's OneHotEncoder refuses any other by default, and its OrdinalEncoder makes one number
of all others: drawn from anything else, answers would fail or be alike.
"""

import onnx_ir as ir

from compiler_worker.master.integers.integer_rules import RULES, selected
from compiler_worker.master.integers.integer_uses import IntegerUses, Rule
from compiler_worker.master.integers.spans import Spans
from services.contracts.model.input_values import Category, Choices

# Of a longer list, as of words or places, some; evenly, as neighbours may be alike.
_MOST = 256
# Strings and integers, by the name of an encoder's attribute.
_LISTS = ("cats_strings", "cats_int64s", "keys_strings", "keys_int64s")


def categories(model: ir.Model, value: ir.Value) -> Choices:
    """What an input may hold, one list for all places or one for each place of the last axis.

    Args:
        model: in its normal form, with shapes inferred.
        value: its input, of any type: categories that are numbers may come as floats.

    Returns:
        Nothing where no place leads to an encoder; a list is empty where its place leads to none,
        or to several that know other categories.
    """
    uses = _Uses(model)
    found = uses.spans(value)
    if found.is_open:
        return ()
    by_place = found.joined(range(found.low.ndim - 1), is_strict=True)
    ends = zip(by_place.low.flat, by_place.high.flat, strict=True)
    lists = tuple(uses.lists[int(low)] if low == high else () for low, high in ends)
    return lists if any(lists) else ()


class _Uses(IntegerUses):
    """The same walk, whose spans are numbers of lists instead of integers that the input holds."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model, _RULES, is_strict=True)
        self.lists: list[tuple[Category, ...]] = []

    def encoded(self, node: ir.Node) -> Spans:
        """The list of an encoder."""
        known = next((each for n in _LISTS if (each := _list(node.attributes.get(n)))), None)
        if known is None:
            return Spans.of()
        if known not in self.lists:
            self.lists.append(known)
        number = self.lists.index(known)
        return Spans.of(number, number)


def _list(attribute: ir.Attr | None) -> tuple[Category, ...]:
    if attribute is None:
        return ()
    is_strings = attribute.type is ir.AttributeType.STRINGS
    every: tuple[Category, ...]
    every = tuple(attribute.as_strings()) if is_strings else tuple(attribute.as_ints())
    step = -(-len(every) // _MOST) or 1
    return every[::step]


def _encoder(walk: IntegerUses, node: ir.Node, _index: int) -> Spans:
    assert isinstance(walk, _Uses)
    return walk.encoded(node)


def _cast(walk: IntegerUses, node: ir.Node, _index: int) -> Spans:
    return walk.spans(node.outputs[0])


def _gather(walk: IntegerUses, node: ir.Node, index: int) -> Spans:
    """Of columns that are taken apart; ArrayFeatureExtractor takes them of the last axis."""
    axis = node.attributes.get("axis")
    default = -1 if node.domain else 0
    return selected(walk, node, axis.as_int() if axis else default) if index == 0 else Spans.of()


_MOVES = ("Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze")
_RULES: dict[str, Rule] = {
    **{name: RULES[name] for name in (*_MOVES, "Transpose", "Unsqueeze")},
    **dict.fromkeys(("ArrayFeatureExtractor", "Gather"), _gather),
    **dict.fromkeys(("LabelEncoder", "OneHotEncoder"), _encoder),
    "Cast": _cast,
}
