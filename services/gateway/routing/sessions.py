"""Requests of one session go to one replica, as long as that can take them.

By rendezvous hashing: every replica has a place in a session's own order, which all gateways
work out alike and none remembers. When the first one goes, its sessions spread over the others,
and no other session moves.
"""

import math
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from services.gateway.routing.balancer import Choice
from services.gateway.upstream.endpoint import Endpoint

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1
# Odd, with bits all over: it spreads each bit of what it multiplies.
_SPREAD: Final = 0x9E3779B97F4A7C15
# A replica has too much when it has so many requests, and so many times its share of all.
_MIN_SPILLED = 8
_MAX_TIMES_SHARE = 2.0


def session_number(session: str | bytes) -> int:
    """A session's name as a number of 64 bits, the same in every process."""
    name = session.encode() if isinstance(session, str) else session
    return int.from_bytes(blake2b(name, digest_size=_BITS // 8).digest())


def share_of(session: int) -> float:
    """Where a session stands in [0, 1), for what is dealt out by shares."""
    return (session >> 11) / (1 << 53)


def choose_for_session(session: int, choice: Choice) -> Endpoint:
    """The first in the session's order that is not overloaded; the first of all if all are."""
    endpoints = choice.endpoints
    if len(endpoints) == 1:
        return endpoints[0]
    most = _MAX_TIMES_SHARE * sum(each.num_outstanding for each in endpoints)
    capacity = sum(1.0 / each.cost for each in endpoints)
    ordered = sorted(endpoints, key=lambda each: _distance(session, each))
    for endpoint in ordered:
        num = endpoint.num_outstanding
        if num < _MIN_SPILLED or num * endpoint.cost * capacity <= most:
            return endpoint
    return ordered[0]


def _distance(session: int, endpoint: Endpoint) -> float:
    """Smaller is earlier; each endpoint is first for sessions in proportion to its weight.

    By its weight when warm: sessions would move with every step of warming.
    """
    mixed = (session ^ _seed(endpoint.replica.replica_id)) * _SPREAD & _MASK
    mixed = (mixed ^ mixed >> 32) * _SPREAD & _MASK
    return -math.log((mixed ^ mixed >> 29 | 1) / (_MASK + 1)) / endpoint.weight


@lru_cache(maxsize=4096)
def _seed(replica_id: str) -> int:
    return session_number(replica_id)
