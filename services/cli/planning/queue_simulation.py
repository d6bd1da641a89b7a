"""A replica's queue, event by event: requests arrive by chance, batches are cut as replicas do."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from services.cli.planning.curves import Curve
from services.cli.planning.plan_profile import ModelDemand
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import ModelVersion
from services.replica.batching.collate import JoinRules
from services.replica.batching.policy import MAX_CANDIDATES, BatchPolicy
from services.replica.batching.run_shapes import RunShapes, Sizes
from services.replica.request.signature import Signature

# Of a queue that is busy 0.7 of the time, the p99 of so many differs by 8 % between seeds.
_NUM_REQUESTS = 10_000
# The first requests find an empty queue, which is not what most find.
_WARM_UP = 500
# A device that does less than this share of its full batches' rate is of no use.
_LEAST_SHARE = 1e-4
# Seeds differ by more.
_SEARCH_RATIO = 1.02
# As replicas, which look through no more of a queue for a batch.
_MOST_LOOKED_AT = 512
# Most queues are short, and are seen again and again.
_MOST_KNOWN = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What a replica did under a load.

    Attributes:
        p50_s, p99_s: of a request, from its arrival to its answer, without the overhead.
        busy: share of the time in which the device computed.
        mean_rows: of a batch.
    """

    p50_s: float
    p99_s: float
    busy: float
    mean_rows: float


class _Run(NamedTuple):
    """One run of the engine: its requests' latencies, its own time, when it ended."""

    latencies_s: list[float]
    run_s: float
    end_s: float


class ReplicaQueue:
    """One model on one device: what requests wait and what they take."""

    def __init__(self, version: ModelVersion, demand: ModelDemand, curve: Curve) -> None:
        """Take the rules of the model.

        Args:
            version: of the model, with its batching and buckets.
            demand: its requests.
            curve: what runs take.

        Raises:
            InvalidRequestError: the demand has sizes that the model does not take.
        """
        rules = JoinRules.from_model(version, Signature.from_model(version))
        self._dim = rules.batch_dim
        self._rows_dim = rules.rows_dim
        self._curve = curve
        self._demand = demand
        self._run_shapes = RunShapes(rules, version.buckets, pads_to_largest=curve.pads_to_largest)
        self._policy = BatchPolicy(
            rules=rules,
            shapes=self._run_shapes,
            fixed_elements=curve.fixed_elements,
            max_waste=version.recipe.batching.max_waste,
        )
        self._delay_s = version.recipe.batching.max_delay_ms / 1000
        self._kinds, self._shares = _kinds(version, demand, rules)
        self._known_choice = lru_cache(maxsize=_MOST_KNOWN)(self._choice)
        self._known_s = lru_cache(maxsize=_MOST_KNOWN)(self._run_s)

    def simulated(self, rate: float, seed: int = 0) -> Simulated:
        """One replica under so many requests per second, which arrive independently (Poisson)."""
        runs = list(self._runs(rate, seed))
        latencies = [each for run in runs for each in run.latencies_s][_WARM_UP:]
        p50_s, p99_s = np.quantile(latencies, (0.5, 0.99)).tolist()
        return Simulated(
            p50_s=p50_s,
            p99_s=p99_s,
            busy=sum(run.run_s for run in runs) / runs[-1].end_s,
            mean_rows=_NUM_REQUESTS * self._demand.rows / len(runs),
        )

    def capacity(self) -> float:
        """The most requests per second that keep the demand's p99; 0 when none do."""
        high = low = self._most()
        least = high * _LEAST_SHARE
        # By ratios: a tight p99 may allow a hundredth of what full batches do. What is too much is
        # found out soon, what is not only at the end of a simulation.
        while not self._keeps_p99(low):
            if low <= least:
                return 0.0
            high = low
            low = max(low / 2, least)
        while high > _SEARCH_RATIO * low:
            middle = math.sqrt(low * high)
            if self._keeps_p99(middle):
                low = middle
            else:
                high = middle
        return low

    def least_p99_ms(self) -> float:
        """The smallest `p99_ms` that can be asked for: the p99 of hardly any load."""
        late = _NUM_REQUESTS // 100
        runs = self._runs(self._most() * _LEAST_SHARE, seed=0)
        allowed_s = sorted(latency_s for run in runs for latency_s in run.latencies_s)[-late - 1]
        return math.ceil((allowed_s * 1000 + self._demand.overhead_ms) * 100) / 100

    def _keeps_p99(self, rate: float) -> bool:
        allowed_s = (self._demand.p99_ms - self._demand.overhead_ms) / 1000
        num_late = 0
        for run in self._runs(rate, seed=0):
            num_late += sum(latency_s > allowed_s for latency_s in run.latencies_s)
            if num_late > _NUM_REQUESTS // 100:
                return False
        return True

    def _runs(self, rate: float, seed: int) -> Iterator[_Run]:
        random = np.random.default_rng(seed)
        arrivals = np.cumsum(random.exponential(1 / rate, _NUM_REQUESTS)).tolist()
        kinds = random.choice(len(self._kinds), _NUM_REQUESTS, p=self._shares).tolist()
        waiting: list[int] = []
        now = 0.0
        num_arrived = 0
        while num_arrived < _NUM_REQUESTS or waiting:
            if not waiting:
                now = max(now, arrivals[num_arrived] + self._delay_s)
            while num_arrived < _NUM_REQUESTS and arrivals[num_arrived] <= now:
                waiting.append(num_arrived)
                num_arrived += 1
            places, run_s = self._next_run([kinds[i] for i in waiting[:_MOST_LOOKED_AT]])
            now += run_s
            latencies_s = [now - arrivals[waiting[place]] for place in places]
            for place in reversed(places):
                del waiting[place]
            yield _Run(latencies_s, run_s, now)

    def _most(self) -> float:
        """Requests per second if each ran in a full batch of its like."""
        mean_s = 0.0
        for kind, share in enumerate(self._shares):
            num = self._num_of(self._kinds[kind])
            mean_s += share * self._known_s((kind,) * num) / num
        return 1 / mean_s

    def _num_of(self, kind: Sizes) -> int:
        """How many requests of one kind the largest batch takes."""
        if self._dim is None:
            return 1
        rows = min(self._run_shapes.rows_at(kind), _MOST_LOOKED_AT)
        return max(int(rows // self._demand.rows), 1)

    def _next_run(self, kinds: Sequence[int]) -> tuple[Sequence[int], float]:
        """Places of the requests that run next, of those that wait, and their seconds."""
        if self._dim is None or len(set(kinds)) == 1:
            num = min(self._num_of(self._kinds[kinds[0]]), len(kinds))
            return range(num), self._known_s((kinds[0],) * num)
        # What is chosen depends on the oldest and on how many there are of each kind, of which
        # those that came first go first: so most queues have been seen in another order.
        seen = kinds[:MAX_CANDIDATES]
        order = sorted(range(len(seen)), key=lambda place: (place > 0, seen[place]))
        chosen = self._known_choice(tuple([seen[place] for place in order]))
        run_s = self._known_s(tuple([seen[order[each]] for each in chosen]))
        return sorted([order[each] for each in chosen]), run_s

    def _choice(self, kinds: tuple[int, ...]) -> list[int]:
        return self._policy.chosen([self._kinds[kind] for kind in kinds])

    def _run_s(self, kinds: tuple[int, ...]) -> float:
        """Seconds of a run: all are padded to the longest."""
        batch = [self._kinds[kind] for kind in kinds]
        longest = {dim: max(each[dim] for each in batch) for dim in batch[0]}
        if self._rows_dim:
            longest[self._rows_dim] = self._demand.rows * len(batch)
        return self._curve.run_s(self._run_shapes.num_elements(longest))


def _kinds(
    version: ModelVersion, demand: ModelDemand, rules: JoinRules
) -> tuple[list[Sizes], list[float]]:
    """Sizes of requests and their shares: dimensions are taken as independent of each other."""
    dims = {dim for spec in version.master.inputs for dim in spec.shape if isinstance(dim, str)}
    dims -= {rules.rows_dim or ""}
    if unknown := demand.sizes.keys() - dims:
        raise InvalidRequestError(
            f"profile: model {version.name}: sizes of {', '.join(sorted(unknown))}: expected "
            f"dimensions of the model: {', '.join(sorted(dims)) or 'it has none but the rows'}"
        )
    spans = {d: [b.dims[d].max for b in version.buckets if d in b.dims] for d in sorted(dims)}
    given = {d: demand.sizes.get(d) or {max(spans[d], default=1): 1.0} for d in spans}
    for dim, shares in given.items():
        if spans[dim] and max(shares) > max(spans[dim]):
            raise InvalidRequestError(
                f"profile: model {version.name}: sizes.{dim}: {max(shares)} is above "
                f"{max(spans[dim])}, the largest that its buckets take"
            )
    most = max(
        (b.dims[d].max for b in version.buckets if (d := rules.rows_dim) in b.dims), default=0
    )
    if most and demand.rows > most:
        raise InvalidRequestError(
            f"profile: model {version.name}: rows: {demand.rows} is above {most}, the most that "
            "its buckets take"
        )
    own = {rules.rows_dim: demand.rows} if rules.rows_dim else {}
    kinds: list[Sizes] = []
    weights = list[float]()
    for combined in product(*given.values()):
        kinds.append(own | dict(zip(given, combined, strict=True)))
        weights.append(math.prod(given[d][s] for d, s in zip(given, combined, strict=True)))
    return kinds, [weight / sum(weights) for weight in weights]
