"""The walk from an input to lists of values, each of which counts for places of its last axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from compiler_worker.master.input_values.input_uses import InputUses, Rule
from compiler_worker.master.input_values.integer_rules import RULES, selected
from compiler_worker.master.input_values.spans import Bounds, Spans
from compiler_worker.master.input_values.value_shapes import known_shape

Known = tuple[Any, ...]
MOST_PLACES = 4096


class ListUses(InputUses):
    """The same walk, whose spans are numbers of lists instead of integers that the input holds.

    A list is of the places that surely lead to where it comes from, and of no others.
    """

    def __init__(self, model: ir.Model, rules: Mapping[str, Rule]) -> None:
        """Know the empty list alone.

        Args:
            model: its nodes are walked.
            rules: by op type.
        """
        super().__init__(model, rules, is_strict=True)
        self._lists: dict[Known, int] = {(): 0}

    def partly(self, _: Spans) -> Spans:
        """Nothing is known of which elements are used."""
        return Spans.of()

    def moved(self, found: Spans) -> Spans:
        """Only what is so of all places."""
        return found if found.is_uniform else Spans.of()

    def spans_of(self, lists: Sequence[Known], shape: Sequence[int] = ()) -> Spans:
        """Spans of that shape whose numbers are those of the lists, open where one is empty."""
        found = [self._lists.setdefault(known, len(self._lists)) for known in lists]
        numbers = np.array(found, np.float64).reshape(shape)
        return Spans(
            low=np.where(numbers, numbers, -np.inf), high=np.where(numbers, numbers, np.inf)
        )

    def columns(self, node: ir.Node, lists: dict[int, Known]) -> Spans:
        """Lists of some columns of a node's first input."""
        shape = known_shape(node.inputs[0])
        size = shape[-1] if shape else None
        if not shape or size is None:
            return Spans.of()
        places = [lists.get(place, ()) for place in range(size)]
        return self.spans_of(places, [1] * (len(shape) - 1) + [size])

    def lists_at(self, found: Spans) -> "np.ndarray[Any, np.dtype[np.object_]]":
        """The list of each place of spans, of any shape, in it; empty where none or several are."""
        lists = np.fromiter(self._lists, object)
        numbers: Bounds = np.where(found.low == found.high, found.low, 0)
        return lists[numbers.astype(np.int64).ravel()].reshape(numbers.shape)

    def joined(self, lists: set[Known]) -> Known:
        """Of elements at one place of the last axis: the list that they share, or none."""
        return lists.pop() if len(lists) == 1 else ()

    def by_place(self, value: ir.Value) -> list[Known]:
        """The list of each place of a value's last axis, or one for all; none of a scalar."""
        if not value.shape:
            return []
        found = np.atleast_1d(self.lists_at(self.spans(value)))
        if not found.size:
            return []
        return [self.joined(set(column)) for column in found.reshape(-1, found.shape[-1]).T]


def few_of(
    lists: Sequence[Known], most: int, some: Callable[[Known, int], Known]
) -> tuple[Known, ...]:
    """Lists as they are kept: one where all are alike, none where all are empty, of few values.

    Args:
        lists: of each place.
        most: values of one list; fewer where places are many.
        some: takes a list, and how many of its values may be kept.
    """
    alike = lists[:1] if len(set(lists)) == 1 else lists
    most = max(2, min(most, MOST_PLACES // max(len(alike), 1)))
    return tuple(some(each, most) for each in alike) if any(alike) else ()


def _cast(walk: InputUses, node: ir.Node, _index: int) -> Spans:
    return walk.spans(node.outputs[0])


def _concat(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Places behind one of unknown size are not known."""
    sizes = [dim for each in node.inputs for dim in (known_shape(each) or [None, None])[1:]]
    is_fixed = None not in sizes and node.attributes["axis"].as_int()
    found = RULES["Concat"](walk, node, index)
    return found if is_fixed or found.is_uniform else Spans.of()


def _gather(walk: InputUses, node: ir.Node, index: int) -> Spans:
    """Of columns that are taken apart; ArrayFeatureExtractor takes them of the last axis."""
    axis = node.attributes.get("axis")
    default = -1 if node.domain else 0
    return selected(walk, node, axis.as_int() if axis else default) if index == 0 else Spans.of()


_KEPT = ("Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose")
# What keeps values, and their places in a known way.
MOVES: dict[str, Rule] = {
    **{name: RULES[name] for name in (*_KEPT, "Unsqueeze")},
    **dict.fromkeys(("ArrayFeatureExtractor", "Gather"), _gather),
    "Cast": _cast,
    "Concat": _concat,
}
