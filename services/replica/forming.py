"""Forms the next batch of what waits, for the engine in use.

Requests whose lengths may be padded are grouped by `grouping`; so are those of an engine that
runs a few shapes only. All others run with the first that fit beside them.
"""

from collections.abc import Sequence
from itertools import islice

from services.replica.engine_worker import BatchTimes, EngineWorker
from services.replica.filling import Filling
from services.replica.grouping import MAX_CANDIDATES, MAX_CANDIDATES_BRIEF, Grouping
from services.replica.joining import JoinRules
from services.replica.run_cost import RunCost
from services.replica.run_shapes import RunShapes, elements_of
from services.replica.waiting import Waiting, WaitingLine

# Requests that a batch is chosen of, the most urgent first: a queue may be long, and looking
# through all of it for each batch would hold up whoever arrives.
_MAX_LOOKED_AT = 512


class BatchFormer:
    """Takes batches out of a line."""

    def __init__(
        self, line: WaitingLine, rules: JoinRules, worker: EngineWorker, max_waste: float
    ) -> None:
        """Take batches of `line` for the engine that `worker` runs at the time."""
        self._line, self._rules, self._worker = line, rules, worker
        self._max_waste = max_waste
        self._shapes = self._learn_seat()

    def learn(self, times: BatchTimes) -> None:
        """Note what a run cost."""
        if self._rules.paddable:
            self._cost.add(times.num_elements, times.compute_infer_s)

    def is_batch_waiting(self) -> bool:
        """Whether what waits fills a bucket, or more than one."""
        filling = Filling(self._rules, self._shapes_now())
        for waiting in islice(self._line, _MAX_LOOKED_AT):
            if not filling.sizes:
                filling.begin(waiting.call.sizes)
            elif not filling.add(waiting.call.sizes) and self._rules.merged(
                filling.sizes, waiting.call.sizes
            ):
                return True
        return filling.is_due

    def take(self) -> list[Waiting]:
        """Remove from the queue the oldest call and those that are to run with it, in order.

        What a batch that failed left is run as it was cut, and with nothing else.
        """
        shapes = self._shapes_now()
        if again := self._line.take_again():
            return again
        can_group = bool(self._rules.paddable) or not shapes.is_exact
        if can_group and self._rules.batch_dim is not None:
            batch = self._grouped(shapes)
        else:
            batch = self._first_fitting(shapes)
        for waiting in batch:
            self._line.remove(waiting)
        return batch

    def _first_fitting(self, shapes: RunShapes) -> list[Waiting]:
        """The oldest call and all that fit beside it."""
        batch: list[Waiting] = []
        unwanted: list[Waiting] = []
        filling = Filling(self._rules, shapes)
        for num, waiting in enumerate(self._line):
            if batch and (filling.is_full or num >= _MAX_LOOKED_AT):
                break
            if not self._line.is_wanted(waiting):
                unwanted.append(waiting)
            elif not batch:
                filling.begin(waiting.call.sizes)
                batch.append(waiting)
            elif filling.add(waiting.call.sizes):
                batch.append(waiting)
        for waiting in unwanted:
            self._line.remove(waiting)
        return batch

    def _first_wanted(self, most: int) -> list[Waiting]:
        """So many calls that are still wanted, as they are due; drops those it passes over."""
        wanted: list[Waiting] = []
        unwanted: list[Waiting] = []
        for waiting in self._line:
            (wanted if self._line.is_wanted(waiting) else unwanted).append(waiting)
            if len(wanted) == most:
                break
        for waiting in unwanted:
            self._line.remove(waiting)
        return wanted

    def _grouped(self, shapes: RunShapes) -> list[Waiting]:
        """The oldest call and those whose lengths go best with it."""
        is_brief = self._worker.seat.is_brief
        most = MAX_CANDIDATES_BRIEF if is_brief else MAX_CANDIDATES
        # All that may be chosen, here or by `_alike`.
        wanted = self._first_wanted(_MAX_LOOKED_AT if shapes.is_exact else most)
        waiting = wanted[:most]
        sizes = [each.call.sizes for each in waiting]
        if not sizes or (shapes.is_exact and all(each == sizes[0] for each in sizes)):
            return self._first_fitting(shapes)
        grouping = Grouping(
            rules=self._rules,
            shapes=shapes,
            fixed_elements=self._cost.fixed_elements,
            max_waste=self._max_waste,
        )
        batch = [waiting[place] for place in grouping.chosen(sizes)]
        return batch + self._alike(batch, wanted[most:]) if shapes.is_exact else batch

    def _alike(self, batch: Sequence[Waiting], others: Sequence[Waiting]) -> list[Waiting]:
        """Those of the others that fit a batch and make its waste no larger."""
        dim = self._rules.batch_dim or ""
        sizes = [waiting.call.sizes for waiting in batch]
        spans = {d: (min(s[d] for s in sizes), max(s[d] for s in sizes)) for d in sizes[0]}
        rows = sum(each[dim] for each in sizes)
        mean = sum(map(elements_of, sizes)) / rows
        most = self._shapes.rows_at({d: high for d, (_, high) in spans.items()})
        found = []
        for waiting in others:
            more = waiting.call.sizes
            is_within = all(low <= more[d] <= high for d, (low, high) in spans.items() if d != dim)
            is_long = elements_of(more) >= mean * more[dim]
            if is_within and is_long and rows + more[dim] <= most:
                found.append(waiting)
                rows += more[dim]
        return found

    def _shapes_now(self) -> RunShapes:
        if self._worker.seat is not self._seat:
            self._shapes = self._learn_seat()
        return self._shapes

    def _learn_seat(self) -> RunShapes:
        """Begin anew with the engine in use: another one has other buckets and other costs."""
        self._seat = seat = self._worker.seat
        self._cost = RunCost()
        return RunShapes(self._rules, seat.buckets, pads_to_largest=seat.pads_to_largest)
