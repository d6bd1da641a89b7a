"""Triton's own metrics, `nv_inference_*`, so that boards made for Triton show a fleet of ours.

Each gateway tells of the requests that it answered, so that sums over gateways are right. How
they ended, how long they took and how many samples they had, it counts itself as it answers.
How often engines ran and what queues and engines took, a replica counts for all gateways
together; of that a gateway takes the share that its own answers are of all the replica's
answers, in whole numbers. Replicas are asked for it with each scrape, and now and then, for
those that go. They cannot export these names themselves, as Ray puts its own before each.
Nothing is said of GPUs (`nv_gpu_*`): a gateway has none.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple

import grpc
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.contracts.errors import InvalidRequestError
from services.contracts.frames import Payload
from services.gateway.endpoint import Endpoint
from services.gateway.endpoints import EndpointSet
from services.gateway.request_rows import num_rows
from services.gateway.statistics import ask_statistics
from services.pb import open_inference_v2_pb2 as pb

ASK_EVERY_S: Final = 5.0
# For all that a scrape shows of replicas; what is not known by then is shown as it was.
SCRAPE_ASKS_S: Final = 1.0
_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = 1000
# Triton's words for why a request failed.
_REASONS: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: "REJECTED",
    grpc.StatusCode.UNAVAILABLE: "REJECTED",
    grpc.StatusCode.DEADLINE_EXCEEDED: "REJECTED",
    grpc.StatusCode.CANCELLED: "CANCELED",
    grpc.StatusCode.INTERNAL: "BACKEND",
}
_OF_REPLICAS: Final = {
    "nv_inference_exec_count": "Number of runs of engines",
    "nv_inference_queue_duration_us": "Cumulative time of requests in queues",
    "nv_inference_compute_input_duration_us": "Cumulative time of joining inputs",
    "nv_inference_compute_infer_duration_us": "Cumulative time of engines",
    "nv_inference_compute_output_duration_us": "Cumulative time of splitting outputs",
}
_Version = tuple[str, str]
_Totals = tuple[float, ...]


class _Look(NamedTuple):
    """What a replica had counted, and how many of its answers were this gateway's.

    Attributes:
        totals: in the order of _OF_REPLICAS.
    """

    totals: _Totals
    num_answers: int
    num_own: int


_NOTHING: Final = _Look((0.0,) * len(_OF_REPLICAS), 0, 0)


class _ReplicaShare:
    """This gateway's share of what one replica counted; it never falls."""

    def __init__(self, version: _Version, first: _Look) -> None:
        self.version, self.totals = version, _NOTHING.totals
        # What was answered before this gateway came was not its own.
        self._base = _NOTHING if first.num_answers <= first.num_own else first
        self.take(first)

    def take(self, look: _Look) -> None:
        """Count what is new."""
        num_answers = look.num_answers - self._base.num_answers
        share = min((look.num_own - self._base.num_own) / num_answers, 1.0) if num_answers else 0.0
        self.totals = tuple(
            max(known, (now - before) * share)
            for known, now, before in zip(self.totals, look.totals, self._base.totals, strict=True)
        )


class TritonMetrics(Collector):
    """Counts as Triton does; used from the event loop, collected from any thread."""

    def __init__(self, num_in_flight: Mapping[_Version, int]) -> None:
        """`num_in_flight` is by model and version, and kept up to date by its owner."""
        self._num_in_flight = num_in_flight
        self._success: defaultdict[_Version, int] = defaultdict(int)
        self._success_us: defaultdict[_Version, int] = defaultdict(int)
        self._num_rows: defaultdict[_Version, int] = defaultdict(int)
        self._failures: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._num_own: defaultdict[str, int] = defaultdict(int)
        self._shares: dict[str, _ReplicaShare] = {}
        # Of replicas that are gone.
        self._past: dict[_Version, _Totals] = {}
        # One look at a time: an answer that came late would undo a newer one's share.
        self._turn = asyncio.Lock()
        self._endpoints: EndpointSet | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def record(
        self, version: _Version, code: grpc.StatusCode, duration_s: float, replica_id: str,
        body: Payload,
    ) -> None:  # fmt: skip
        """Add a request that ended, of a model and version that the fleet knows.

        `body` is the request; `replica_id` is "" for one that no replica has had.
        """
        if not version[0]:
            return
        if code is not grpc.StatusCode.OK:
            self._failures[*version, _REASONS.get(code, "OTHER")] += 1
            return
        self._success[version] += 1
        self._success_us[version] += round(duration_s * _US_PER_S)
        # What the response cache answered was no inference.
        self._num_rows[version] += self._rows_of(version, body) if replica_id else 0
        if replica_id:
            self._num_own[replica_id] += 1

    def _rows_of(self, version: _Version, body: Payload) -> int:
        """Samples of a request that was answered; 1 when its model was removed meanwhile."""
        models = self._endpoints.table.view.models if self._endpoints else {}
        served = models.get(version[0], {}).get(int(version[1]))
        if served is not None:
            # The answer is there: whatever is wrong with the count shall not hinder it.
            with suppress(InvalidRequestError):
                return num_rows(body, served.document)
        return 1

    def forget(self, model: str, version: str) -> None:
        """Drop what was counted of a version."""
        key = model, version
        for counts in (self._success, self._success_us, self._num_rows, self._past):
            counts.pop(key, None)
        for failed in [failed for failed in self._failures if failed[:2] == key]:
            del self._failures[failed]

    async def follow(self, endpoints: EndpointSet) -> None:
        """Ask the replicas at intervals, until cancelled; new ones at once.

        What a replica counted before it was asked for the first time is not told apart.
        """
        self._endpoints, self._loop = endpoints, asyncio.get_running_loop()
        while True:
            changed = endpoints.changed
            await self._look_at_all(endpoints)
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):
                    await changed.wait()

    async def _look_at_all(self, endpoints: EndpointSet) -> None:
        async with self._turn:
            await self.look([endpoint for peers in endpoints.peers() for endpoint in peers])

    async def look(self, endpoints: list[Endpoint]) -> None:
        """Ask them once; those that were known and are not among them have gone."""
        # Before the wait: whoever answers its first request meanwhile is not known here yet.
        had_answered = set(self._num_own)
        answers = await asyncio.gather(*map(ask_statistics, endpoints))
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if answer is not None:
                self._take(endpoint, answer)
        here = {endpoint.replica.replica_id for endpoint in endpoints}
        for replica_id in self._shares.keys() - here:
            gone = self._shares.pop(replica_id)
            self._past[gone.version] = _added(self._past.get(gone.version), gone.totals)
        # Also of those that went before they ever told anything.
        for replica_id in had_answered - here:
            del self._num_own[replica_id]

    def _take(self, endpoint: Endpoint, answer: pb.ModelStatistics) -> None:
        replica = endpoint.replica
        look = _look(answer, self._num_own[replica.replica_id])
        if known := self._shares.get(replica.replica_id):
            known.take(look)
        else:
            version = (replica.model_name, str(replica.model_version))
            self._shares[replica.replica_id] = _ReplicaShare(version, look)

    def describe(self) -> list[Metric]:
        """Nothing: the names are known once there is something to tell."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families; of type unknown, as libraries would end a counter's name in `_total`."""
        self._ask_now()
        yield _family(
            "nv_inference_request_success",
            "Number of successful inference requests",
            dict(self._success),
        )
        yield self._failure_family()
        yield _family(
            "nv_inference_request_duration_us",
            "Cumulative time of successful inference requests",
            dict(self._success_us),
        )
        yield _family(
            "nv_inference_count",
            "Number of inferences performed, a batch of n counts n",
            dict(self._num_rows),
        )
        yield _family(
            "nv_inference_pending_request_count",
            "Requests that this gateway has accepted and not yet answered, waiting or running",
            dict(self._num_in_flight),
        )
        totals = self._totals()
        for at, (name, text) in enumerate(_OF_REPLICAS.items()):
            values = {version: round(found[at]) for version, found in totals.items()}
            yield _family(name, text, values)

    def _ask_now(self) -> None:
        """Ask the replicas, from the thread of a scrape, and wait for their answers a little."""
        endpoints, loop = self._endpoints, self._loop
        if endpoints is None or loop is None or not loop.is_running() or _is_in_a_loop():
            return
        look = asyncio.run_coroutine_threadsafe(self._look_at_all(endpoints), loop)
        try:
            look.result(SCRAPE_ASKS_S)
        except (TimeoutError, CancelledError):
            look.cancel()

    def _failure_family(self) -> Metric:
        family = Metric(
            "nv_inference_request_failure", "Number of failed inference requests", "unknown"
        )
        for (model, version, reason), count in self._failures.copy().items():
            labels = {"model": model, "version": version, "reason": reason}
            family.add_sample(family.name, labels, count)
        return family

    def _totals(self) -> dict[_Version, _Totals]:
        totals = self._past.copy()
        for share in list(self._shares.values()):
            totals[share.version] = _added(totals.get(share.version), share.totals)
        return totals


def _look(answer: pb.ModelStatistics, num_own: int) -> _Look:
    stats = answer.inference_stats
    parts = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    times_us = (part.ns / _NS_PER_US for part in parts)
    totals = (answer.execution_count, *times_us)
    return _Look(tuple(map(float, totals)), stats.success.count, num_own)


def _is_in_a_loop() -> bool:
    """Whether waiting here would stop an event loop."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return False


def _added(known: _Totals | None, more: _Totals) -> _Totals:
    return more if known is None else tuple(a + b for a, b in zip(known, more, strict=True))


def _family(name: str, text: str, values: Mapping[_Version, float]) -> Metric:
    family = Metric(name, text, "unknown")
    for (model, version), value in values.items():
        family.add_sample(name, {"model": model, "version": version}, value)
    return family
