"""Which parts of the arena are free: a buddy allocator. Pure: it knows numbers alone.

Blocks of 2**order units begin at multiples of their size, so a block's only neighbour to join is
known by its number (Knuth, The Art of Computer Programming, volume 1, section 2.5). What was
given back last is taken first, as caches may still hold it; blocks are joined only when one that
is large enough is missing.
"""


class Blocks:
    """Gives numbers of blocks, and takes them back.

    Attributes:
        num_free: units that belong to no block that was given.
    """

    def __init__(self, num_units: int, max_order: int) -> None:
        """All is free; `num_units` is a multiple of the largest block, which is 2**max_order."""
        step = 1 << max_order
        self._free: list[list[int]] = [[] for _ in range(max_order)]
        # The first block is taken first.
        self._free.append(list(range(0, num_units - step + 1, step))[::-1])
        self.num_free = len(self._free[max_order]) * step

    def take(self, order: int) -> int | None:
        """The first unit of a block of 2**order units; None when there is none."""
        if self.num_free < 1 << order:
            return None
        first = self._split(order)
        if first is None:
            self._join(order)
            first = self._split(order)
        if first is not None:
            self.num_free -= 1 << order
        return first

    def give(self, first: int, order: int) -> None:
        """A block that was taken is free again."""
        self._free[order].append(first)
        self.num_free += 1 << order

    def _split(self, order: int) -> int | None:
        """Take the smallest free block that is large enough, without what is not needed of it."""
        free = self._free
        for found in range(order, len(free)):
            if free[found]:
                first = free[found].pop()
                for half in range(order, found):
                    free[half].append(first + (1 << half))
                return first
        return None

    def _join(self, max_order: int) -> None:
        """Make the largest blocks of what is free, up to that order."""
        for order in range(max_order):
            step, free = 1 << order, set(self._free[order])
            lower = [each for each in free if not each & step and each + step in free]
            free.difference_update(lower, [each + step for each in lower])
            self._free[order] = sorted(free, reverse=True)
            self._free[order + 1] += lower
