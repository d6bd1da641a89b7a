"""A uniform sample of a stream of unknown length, by Algorithm L: passing over costs nothing.

Instead of a draw for each row it draws how many to pass over: of N rows it takes some
k (1 + ln(N / k)), each of which is then kept with the same probability k / N.
"""

import math
from random import Random

from services.contracts.traffic.sampled_rows import SampledRow


class Reservoir:
    """Keeps `size` rows of all that were seen.

    Attributes:
        label: of the bucket that they belong to.
        seen: rows that were offered.
        kept: those that are kept now.
        next_at: the number, from 0, of the next one that is taken.
    """

    __slots__ = ("_largest", "_random", "_size", "kept", "label", "next_at", "seen")

    def __init__(self, label: str, size: int, random: Random) -> None:
        """Begin empty.

        Args:
            label: of a bucket.
            size: rows to keep.
            random: draws.
        """
        self.label = label
        self.seen = 0
        self.kept: list[SampledRow] = []
        self.next_at = 0
        self._size = size
        self._random = random
        self._largest = 1.0

    def take(self, row: SampledRow | None) -> None:
        """Take row number `next_at`, in the place of another when full; None passes it over."""
        is_full = len(self.kept) >= self._size
        if row and is_full:
            self.kept[self._random.randrange(self._size)] = row
        elif row:
            self.kept.append(row)
        self.next_at += 1
        if len(self.kept) >= self._size:
            # 1 - random() is never 0, of which there is no logarithm.
            self._largest *= math.exp(math.log(1 - self._random.random()) / self._size)
            passed = math.log(1 - self._random.random()) / math.log1p(-self._largest)
            self.next_at += math.floor(passed)
