"""The buddy allocator, against a model that knows which unit belongs to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.upstream.blocks import Blocks

MAX_ORDER = 4
STEP = 1 << MAX_ORDER
NUM_UNITS = 3 * STEP


class Model:
    """Blocks that were taken, and the units that they cover."""

    def __init__(self) -> None:
        self.blocks = Blocks(NUM_UNITS, MAX_ORDER)
        self.taken: list[tuple[int, int]] = []
        self.covered: set[int] = set()

    def take(self, order: int) -> None:
        """Takes a block, if there is one: aligned, inside, and nobody else's."""
        first = self.blocks.take(order)
        if first is None:
            assert not self._has_room(order)
            return
        units = set(range(first, first + (1 << order)))
        assert first % (1 << order) == 0
        assert units <= set(range(NUM_UNITS))
        assert not units & self.covered
        self.covered |= units
        self.taken.append((first, order))

    def give(self, number: int) -> None:
        """Gives one of them back."""
        if self.taken:
            first, order = self.taken.pop(number % len(self.taken))
            self.covered -= set(range(first, first + (1 << order)))
            self.blocks.give(first, order)

    def _has_room(self, order: int) -> bool:
        """Whether some aligned block of that size is nobody's."""
        return any(
            not self.covered & set(range(first, first + (1 << order)))
            for first in range(0, NUM_UNITS, 1 << order)
        )


# Below zero: a block is given back.
STEPS = st.lists(st.integers(0, MAX_ORDER) | st.integers(-60, -1), max_size=120)


@given(STEPS)
def test_blocks_never_overlap_are_found_if_there_are_any_and_join_again(steps: list[int]) -> None:
    model = Model()
    for step in steps:
        if step < 0:
            model.give(step)
        else:
            model.take(step)
        assert model.blocks.num_free == NUM_UNITS - len(model.covered)
    while model.taken:
        model.give(0)
    whole = sorted(model.blocks.take(MAX_ORDER) or 0 for _ in range(NUM_UNITS // STEP))
    assert whole == list(range(0, NUM_UNITS, STEP))
    assert (model.blocks.num_free, model.blocks.take(0)) == (0, None)


@pytest.mark.parametrize("order", range(MAX_ORDER + 1))
def test_what_was_given_back_last_is_taken_first(order: int) -> None:
    blocks = Blocks(NUM_UNITS, MAX_ORDER)
    one, two = blocks.take(order), blocks.take(order)
    assert one == 0
    assert two is not None
    blocks.give(one, order)
    blocks.give(two, order)
    assert [blocks.take(order), blocks.take(order)] == [two, one]


def test_a_part_beyond_the_last_whole_block_is_left_out() -> None:
    blocks = Blocks(STEP + 5, MAX_ORDER)
    assert (blocks.num_free, blocks.take(MAX_ORDER), blocks.take(0)) == (STEP, 0, None)
