"""Takes replicas out of choice that fail, or that are far slower than their like.

One that fails quickly looks idle, and so would be chosen before all others. It comes back by
itself, and is away for twice as long each time that it fails again. At least half of a
model's replicas stay in choice: what all of them do is no outlier.
"""

import asyncio
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from services.contracts.process.backoff import wait_after
from services.gateway.upstream.endpoint import Endpoint
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
FAILURES = "failures"
SLOW = "slow"
# Fewer answers between two looks are no measure of a replica's speed; fewer peers are none.
_MIN_ANSWERS = 10
_MIN_PEERS = 3
_MAX_SLOW_LOOKS: Final = 3
# Requests that take less than this longer than others are not worth a replica.
_LEAST_LAG_S: Final = 0.005
_LONGEST_S: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class OutlierRules:
    """What makes an outlier.

    Attributes:
        max_failures: faults in a row that take a replica out; 0 for none.
        max_slowness: times the median of its like; 0 for no bound.
        first_s: how long the first ejection lasts.
    """

    max_failures: int = 5
    max_slowness: float = 4.0
    first_s: float = 5.0


@dataclass(frozen=True)
class OutlierWatch:
    """Ejects endpoints; routing tables leave out those that are ejected.

    Attributes:
        rules: what makes an outlier.
        recorder: counts ejections.
        peers_of: the endpoints of an endpoint's pool, itself included.
        on_change: makes a new routing table.
        clock: that of `Endpoint.ejected_until_s`.
    """

    rules: OutlierRules
    recorder: Recorder
    peers_of: Callable[[Endpoint], Sequence[Endpoint]]
    on_change: Callable[[], None]
    clock: Callable[[], float] = time.monotonic

    def note_failure(self, endpoint: Endpoint) -> None:
        """An endpoint answered with a fault of its own."""
        endpoint.num_failures += 1
        limit = self.rules.max_failures
        if limit and endpoint.num_failures >= limit:
            self._eject(endpoint, FAILURES)

    async def watch(self, pools: Callable[[], Iterable[Sequence[Endpoint]]]) -> None:
        """Look for slow ones at intervals, until cancelled; `pools` gives those of now."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for endpoints in pools():
                self.look(endpoints)

    def look(self, endpoints: Sequence[Endpoint]) -> None:
        """Compare what the endpoints of one pool took since the last look."""
        now_s = self.clock()
        by_kind: dict[tuple[str, str], list[tuple[Endpoint, float]]] = {}
        for each in endpoints:
            if each.num_answers >= _MIN_ANSWERS and each.ejected_until_s <= now_s:
                # Only like is compared with like: another generation has a right to be slower.
                kind = each.replica.generation, each.replica.engine.digest
                by_kind.setdefault(kind, []).append((each, each.answers_took_s / each.num_answers))
            each.num_answers = 0
            each.answers_took_s = 0.0
            if each.num_ejections and now_s > each.ejected_until_s + self._last_s(each):
                # It did well for as long as it was away: all is forgiven.
                each.num_ejections = 0
        for peers in by_kind.values():
            if self.rules.max_slowness and len(peers) >= _MIN_PEERS:
                self._judge(peers)

    def _judge(self, peers: Sequence[tuple[Endpoint, float]]) -> None:
        median_s = statistics.median(mean_s for _, mean_s in peers)
        bound_s = max(self.rules.max_slowness * median_s, median_s + _LEAST_LAG_S)
        for endpoint, mean_s in peers:
            endpoint.num_slow_looks = endpoint.num_slow_looks + 1 if mean_s > bound_s else 0
            if endpoint.num_slow_looks >= _MAX_SLOW_LOOKS:
                self._eject(endpoint, SLOW)

    def _eject(self, endpoint: Endpoint, reason: str) -> None:
        now_s = self.clock()
        replica = endpoint.replica
        peers = self.peers_of(endpoint)
        num_away = sum(each.ejected_until_s > now_s for each in peers)
        if endpoint.ejected_until_s > now_s or 2 * (num_away + 1) > len(peers):
            return
        endpoint.num_ejections += 1
        endpoint.num_failures = endpoint.num_slow_looks = 0
        away_s = self._last_s(endpoint)
        endpoint.ejected_until_s = now_s + away_s
        logger.warning(
            "replica %s gets no requests for %.0f s: %s", replica.replica_id, away_s, reason
        )
        self.recorder.count(
            catalog.REPLICA_EJECTIONS,
            model=replica.model_name,
            version=str(replica.model_version),
            generation=replica.generation,
            reason=reason,
        )
        self.on_change()

    def _last_s(self, endpoint: Endpoint) -> float:
        """How long its newest ejection lasts."""
        return wait_after(endpoint.num_ejections, first_s=self.rules.first_s, most_s=_LONGEST_S)
