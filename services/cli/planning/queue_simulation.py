"""A replica's queue: which of the requests that wait run next, by its own code, and how long."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from services.cli.planning.curves import Curve
from services.cli.planning.plan_profile import ModelDemand
from services.contracts.errors import InvalidRequestError
from services.contracts.model.manifest import ModelVersion
from services.replica.batching.batch_policy import MAX_CANDIDATES, BatchPolicy
from services.replica.batching.collate import JoinRules
from services.replica.batching.run_shapes import RunShapes, Sizes, elements_of
from services.replica.request.signature import Signature

# As replicas, which look through no more of a queue for a batch.
MOST_LOOKED_AT = 512
# Most queues are short, and are seen again and again.
_MOST_KNOWN = 1 << 14


class ReplicaQueue:
    """One model's replica on a device that it has for itself.

    Attributes:
        demand: its requests.
        curve: what its runs take.
        delay_s: that the first request to come waits for others.
        kinds: sizes of requests, the longest first, and their `shares`.
    """

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
        self.curve = curve
        self.demand = demand
        self._run_shapes = RunShapes(rules, version.buckets, pads_to_largest=curve.pads_to_largest)
        self._policy = BatchPolicy(
            rules=rules,
            shapes=self._run_shapes,
            fixed_elements=curve.fixed_elements,
            max_waste=version.recipe.batching.max_waste,
        )
        self.delay_s = version.recipe.batching.max_delay_ms / 1000
        self.kinds, self.shares = _kinds(version, demand, rules)
        self._joins = [[rules.merged(a, b) is not None for b in self.kinds] for a in self.kinds]
        self._most_of = [self._num_of(kind) for kind in self.kinds]
        self._known_cuts = lru_cache(maxsize=_MOST_KNOWN)(self._cuts)
        self._known_s = lru_cache(maxsize=_MOST_KNOWN)(self._run_s)

    def most(self) -> float:
        """Requests per second of the engine alone if each ran in a full batch of its like."""
        mean_s = 0.0
        for kind, share in enumerate(self.shares):
            num = self._most_of[kind]
            mean_s += share * self._known_s((kind,) * num) / num
        return 1 / mean_s

    def _num_of(self, kind: Sizes) -> int:
        """How many requests of one kind the largest batch takes."""
        if self._dim is None:
            return 1
        rows = min(self._run_shapes.rows_at(kind), MOST_LOOKED_AT)
        return max(int(rows // self.demand.rows), 1)

    def next_run(self, waiting: Sequence[int]) -> tuple[Sequence[int], float]:
        """Places of the requests that run next, of those that wait, and their seconds.

        Args:
            waiting: the kinds of the requests, in the order in which they came.
        """
        oldest = waiting[0]
        if self._dim is None or waiting.count(oldest) == len(waiting):
            num = min(self._most_of[oldest], len(waiting))
            return range(num), self._known_s((oldest,) * num)
        joins = self._joins[oldest]
        seen = [place for place, kind in enumerate(waiting[:MAX_CANDIDATES]) if joins[kind]]
        # Kinds are numbered from the longest on, and of each those that came first go first.
        seen.sort(key=waiting.__getitem__)
        kinds = [waiting[place] for place in seen]
        num_longest = kinds.count(kinds[0])
        # What is cut from a request on does not depend on those before: most are known.
        num_known = 1 << (num_longest - 1).bit_length()
        ends = self._known_cuts((kinds[0],) * num_known + tuple(kinds[num_longest:]))
        unseen = num_known - num_longest
        first = 0
        place = seen.index(0)
        while (end := ends[first + unseen] - unseen) <= place:
            first = end
        return sorted(seen[first:end]), self._known_s(tuple(kinds[first:end]))

    def _cuts(self, kinds: tuple[int, ...]) -> list[int]:
        return self._policy.cuts([self.kinds[kind] for kind in kinds])

    def _run_s(self, kinds: tuple[int, ...]) -> float:
        """Seconds of a run: all are padded to the longest."""
        batch = [self.kinds[kind] for kind in kinds]
        longest = {dim: max(each[dim] for each in batch) for dim in batch[0]}
        if self._rows_dim:
            longest[self._rows_dim] = self.demand.rows * len(batch)
        return self.curve.run_s(self._run_shapes.num_elements(longest))


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
        # Of the largest: shares may be counts of any size.
        sizes = zip(given, combined, strict=True)
        weights.append(math.prod(given[d][s] / max(given[d].values()) for d, s in sizes))
    order = sorted(range(len(kinds)), key=lambda kind: -elements_of(kinds[kind]))
    return [kinds[kind] for kind in order], [weights[kind] / sum(weights) for kind in order]
