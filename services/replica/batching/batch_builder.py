"""Forms the next batch of what waits, for the engine in use.

One policy: `policy` chooses among the most urgent where lengths differ, and what is chosen is
filled up with those behind them that fit it. Requests of one length need no choice where they fill
the largest batch, or none is padded: there the oldest is filled up at once. (On an H200, with
hundreds of calls in the queue, choosing took a quarter of a replica's time.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice

from services.replica.batching.batch_policy import MAX_CANDIDATES, MAX_CANDIDATES_BRIEF, BatchPolicy
from services.replica.batching.collate import JoinRules
from services.replica.batching.queue import QueuedRequest, RequestQueue
from services.replica.batching.run_cost import RunCost
from services.replica.batching.run_shapes import RunShapes, Sizes, elements_of
from services.replica.engine.worker import BatchTimes, EngineWorker

# Requests that a batch is chosen of, the most urgent first: a queue may be long, and looking
# through all of it for each batch would delay new requests.
_MAX_LOOKED_AT = 512


class BatchBuilder:
    """Takes batches out of a queue."""

    def __init__(
        self, queue: RequestQueue, rules: JoinRules, worker: EngineWorker, max_waste: float
    ) -> None:
        """Take batches of `queue` for the engine that `worker` runs at the time.

        Args:
            queue: calls that wait.
            rules: which inputs may be padded, and which dimension rows are joined along.
            worker: its engine at the time decides sizes and times of a run.
            max_waste: largest share of a batch that may be padding, 0 to 1.
        """
        self._queue = queue
        self._rules = rules
        self._worker = worker
        self._max_waste = max_waste
        self._shapes = self._learn_executor()

    def learn(self, times: BatchTimes) -> None:
        """Note what a run cost."""
        if self._rules.paddable:
            self._cost.add(times.num_elements, times.compute_infer_s)

    def is_batch_waiting(self) -> bool:
        """Whether what waits fills a bucket, or more than one."""
        dim = self._rules.batch_dim
        shapes = self._shapes_now()
        sizes: dict[str, int] | None = None
        for waiting in islice(self._queue, _MAX_LOOKED_AT):
            own = waiting.call.sizes
            merged = dict(own) if sizes is None else self._rules.merged(sizes, own)
            if dim is None or (merged and sizes and merged[dim] > shapes.rows_at(merged)):
                return True
            sizes = merged or sizes
        return bool(dim and sizes and sizes[dim] >= shapes.preferred_rows(sizes))

    def take(self) -> list[QueuedRequest]:
        """Remove from the queue the oldest call and those that are to run with it, in order.

        What a batch that failed left is run as it was cut, and with nothing else.
        """
        shapes = self._shapes_now()
        if again := self._queue.take_again():
            return again
        unwanted: list[QueuedRequest] = []
        batch = self._chosen(islice(self._wanted(unwanted), _MAX_LOOKED_AT), shapes)
        for waiting in (*unwanted, *batch):
            self._queue.remove(waiting)
        return batch

    def _wanted(self, unwanted: list[QueuedRequest]) -> Iterator[QueuedRequest]:
        """Calls that are still wanted, as they are due; gathers those it passes over."""
        for waiting in self._queue:
            if self._queue.is_wanted(waiting):
                yield waiting
            else:
                unwanted.append(waiting)

    def _chosen(self, wanted: Iterator[QueuedRequest], shapes: RunShapes) -> list[QueuedRequest]:
        """The oldest call and those whose lengths go best with it."""
        if self._rules.batch_dim is None:
            return list(islice(wanted, 1))
        if shapes.is_exact and not self._rules.paddable:
            return self._extended(list(islice(wanted, 1)), wanted, shapes)
        near = list(islice(wanted, 1))
        if near:
            near += islice(wanted, self._num_looked_at(near[0].call.sizes, shapes) - 1)
        sizes = [waiting.call.sizes for waiting in near]
        if not near or self._needs_no_choice(sizes, shapes):
            return self._extended(near[:1], chain(near[1:], wanted), shapes)
        sizes = sizes[: self._most_candidates]
        grouping = BatchPolicy(
            rules=self._rules,
            shapes=shapes,
            fixed_elements=self._cost.fixed_elements,
            max_waste=self._max_waste,
        )
        batch = [near[place] for place in grouping.chosen(sizes)]
        return self._extended(batch, wanted, shapes) if shapes.is_exact else batch

    @property
    def _most_candidates(self) -> int:
        return MAX_CANDIDATES_BRIEF if self._worker.executor.loaded.is_brief else MAX_CANDIDATES

    def _num_looked_at(self, sizes: Sizes, shapes: RunShapes) -> int:
        """Enough to know whether a batch like this call can be filled by others like it."""
        most_rows = 0.0 if shapes.is_exact else min(shapes.rows_at(sizes), _MAX_LOOKED_AT)
        return max(self._most_candidates, int(most_rows))

    def _needs_no_choice(self, sizes: Sequence[Sizes], shapes: RunShapes) -> bool:
        """Whether nothing is better than the oldest call, and all behind it that fits.

        That is so of one call, and where calls differ in nothing but rows, and either every size is
        an engine's own or there are enough of them for the largest batch, which leaves the least
        to pad.
        """
        first = sizes[0]
        if len(sizes) == 1:
            return True
        if not all(self._is_alike(each, first) for each in sizes):
            return False
        dim = self._rules.batch_dim or ""
        return shapes.is_exact or sum([each[dim] for each in sizes]) >= shapes.rows_at(first)

    def _is_alike(self, left: Sizes, right: Sizes) -> bool:
        """Whether two calls differ in nothing but rows."""
        if left is right or left == right:
            return True
        return all(size == right[d] for d, size in left.items() if d != self._rules.batch_dim)

    def _extended(
        self, batch: list[QueuedRequest], others: Iterator[QueuedRequest], shapes: RunShapes
    ) -> list[QueuedRequest]:
        """A batch with those of the others that fit it and make its waste no larger."""
        if not batch:
            return batch
        dim = self._rules.batch_dim or ""
        sizes = [waiting.call.sizes for waiting in batch]
        rows = sum([each[dim] for each in sizes])
        most = shapes.rows_at(self._rules.sizes_of([waiting.call for waiting in batch]))
        # Most are like a lone oldest one, and need no other look.
        like = sizes[0] if len(sizes) == 1 else None
        is_covered: Callable[[Mapping[str, int]], bool] | None = None
        for waiting in others:
            if rows >= most:
                break
            own = waiting.call.sizes
            if own != like:
                is_covered = is_covered or _covered_by(sizes, dim)
                if not is_covered(own):
                    continue
            if rows + own[dim] <= most:
                batch.append(waiting)
                rows += own[dim]
        return batch

    def _shapes_now(self) -> RunShapes:
        if self._worker.executor is not self._executor:
            self._shapes = self._learn_executor()
        return self._shapes

    def _learn_executor(self) -> RunShapes:
        """Begin anew with the engine in use: another one has other buckets and other costs."""
        self._executor = self._worker.executor
        self._cost = RunCost()
        engine = self._executor.loaded
        return RunShapes(self._rules, engine.buckets, pads_to_largest=engine.pads_to_largest)


def _covered_by(
    sizes: Sequence[Mapping[str, int]], dim: str
) -> Callable[[Mapping[str, int]], bool]:
    """Whether another call's lengths lie between those of a batch, and add no share of padding."""
    spans = {d: (min(s[d] for s in sizes), max(s[d] for s in sizes)) for d in sizes[0] if d != dim}
    mean = sum(map(elements_of, sizes)) / max(sum(each[dim] for each in sizes), 1)

    def is_covered(own: Mapping[str, int]) -> bool:
        is_within = all(low <= own[d] <= high for d, (low, high) in spans.items())
        return is_within and elements_of(own) >= mean * own[dim]

    return is_covered
