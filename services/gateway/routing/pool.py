"""The replicas that may answer for a version, and how versions share what names none of them."""

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from services.contracts.model.version_shares import shares_among
from services.gateway.routing.balancer import Choice
from services.gateway.routing.endpoint_weights import ends_of_shares
from services.gateway.routing.sessions import share_of
from services.gateway.upstream.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool:
    """The endpoints that may answer for one version of a model; never empty.

    Attributes:
        endpoints: all of them.
        choice: those that requests are sent to, without outliers; never empty either.
        split: how versions share what names none; only for the empty version, if at all.
    """

    model: str
    version: str
    endpoints: tuple[Endpoint, ...]
    choice: Choice
    split: "Split | None" = None

    def drawn(self, session: int) -> "Pool":
        """One version's pool, by the versions' weights; the same for all of a session."""
        if self.split is None:
            return self
        shares, pools = self.split
        at = share_of(session) if session else random.random()  # noqa: S311 - no secret
        return pools[bisect_right(shares, at)]

    def by_version(self, first: str) -> Sequence["Pool"]:
        """The pools of all versions that share, that of `first` in front; itself if none do."""
        if self.split is None:
            return (self,)
        return sorted(self.split.pools, key=lambda each: each.version != first)


class Split(NamedTuple):
    """Pools of versions, and the upper ends of their shares of [0, 1)."""

    shares: tuple[float, ...]
    pools: tuple[Pool, ...]


def shared_pool(pools: Mapping[int, Pool], weights: Mapping[int, float]) -> Pool:
    """What answers for a model without a version: the heaviest, and how they share.

    Args:
        pools: by version, of those that have a ready replica; not empty.
        weights: by version, of all; they decide as in `version_shares`.
    """
    shares = shares_among(weights, pools)
    ordered = sorted(shares, key=lambda version: -shares[version])
    heaviest = pools[ordered[0]]
    if len(ordered) == 1:
        return heaviest
    ends = ends_of_shares([shares[version] for version in ordered])
    return replace(heaviest, split=Split(ends, tuple(pools[version] for version in ordered)))
