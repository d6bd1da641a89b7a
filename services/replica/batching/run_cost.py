"""What a run of the engine costs beside its elements, learned from the runs themselves.

Seconds are taken for a line over elements: `fixed + each * elements`. Where the fixed part is
large, as with a GPU that is waiting for its next kernel, padding is nearly free; on a CPU, where
it is small, padding costs as much as work.
"""

import math

# A run counts half after some 70 others: clock rates, other processes and engines change.
_KEPT = 0.99
_MIN_RUNS = 8
# Runs that differ less than this in size say nothing of a slope: their spread over their mean.
_MIN_SPREAD = 0.1
# A run that was held up is a poor measure: it counts as this many times what was expected.
_MAX_EXCESS = 3.0


class RunCost:
    """A straight line through seconds over elements, the newest runs weighing most."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._num_runs = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._each_s = 0.0
        self._fixed_s = 0.0

    @property
    def fixed_elements(self) -> float:
        """The elements that take as long as a run of none; infinite while nothing is known."""
        return self._fixed_s / self._each_s if self._each_s else math.inf

    def add(self, num_elements: int, seconds: float) -> None:
        """Learn from a run."""
        if self._each_s:
            expected_s = self._fixed_s + self._each_s * num_elements
            seconds = min(seconds, _MAX_EXCESS * expected_s)
        self._num_runs += 1
        self._weight = self._weight * _KEPT + 1
        self._x = self._x * _KEPT + num_elements
        self._y = self._y * _KEPT + seconds
        self._xx = self._xx * _KEPT + num_elements * num_elements
        self._xy = self._xy * _KEPT + num_elements * seconds
        if self._num_runs >= _MIN_RUNS:
            self._draw()

    def _draw(self) -> None:
        mean_x = self._x / self._weight
        mean_y = self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance <= (_MIN_SPREAD * mean_x) ** 2:
            return
        slope_s = (self._xy / self._weight - mean_x * mean_y) / variance
        if slope_s <= 0:
            # More elements in less time: then only the number of runs is left to save.
            self._each_s = 0.0
            return
        self._each_s = slope_s
        self._fixed_s = max(mean_y - slope_s * mean_x, 0.0)
