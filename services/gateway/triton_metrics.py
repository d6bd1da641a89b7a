"""Triton's own metrics, `nv_inference_*`, so that boards made for Triton show a fleet of ours.

What requests took, and how many samples and runs of engines they were, is what ModelStatistics
says: replicas count it, the response cache adds its hits. A replica counts for all gateways
together; each gateway exports the share that its own answers are of all the replica's answers, in
whole numbers, so that sums over gateways are right. How many requests succeeded, and how others
failed, a gateway counts itself as it answers: failures of requests that no replica had too.
Replicas are asked with each scrape, and now and then, for those that go. They cannot export these
names themselves, as Ray puts its own before each.
There is no `nv_gpu_*`: a gateway has no GPU to measure. NVIDIA's DCGM exporter measures them.
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

from services.gateway.endpoint import Endpoint
from services.gateway.endpoints import EndpointSet
from services.gateway.statistics import OwnStatistics, ask_statistics
from services.pb import open_inference_v2_pb2 as pb

ASK_EVERY_S: Final = 5.0
# For all that a scrape shows of replicas; what is not known by then is shown as it was.
SCRAPE_ASKS_S: Final = 1.0
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
    "nv_inference_count": "Number of inferences performed, a batch of n counts n",
    "nv_inference_request_duration_us": "Cumulative time of successful inference requests",
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

    def __init__(self, num_in_flight: Mapping[_Version, int], own: OwnStatistics) -> None:
        """Begin at zero.

        Args:
            num_in_flight: requests by model and version, kept up to date by its owner.
            own: what this gateway counted of requests that no replica had, its cache's hits.
        """
        self._num_in_flight, self._own = num_in_flight, own
        self._success: defaultdict[_Version, int] = defaultdict(int)
        self._failures: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._num_own: defaultdict[str, int] = defaultdict(int)
        self._shares: dict[str, _ReplicaShare] = {}
        # Of replicas that are gone.
        self._past: dict[_Version, _Totals] = {}
        # One look at a time: an answer that came late would undo a newer one's share.
        self._turn = asyncio.Lock()
        self._endpoints: EndpointSet | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def record(self, version: _Version, code: grpc.StatusCode, replica_id: str) -> None:
        """Add a request that ended.

        Args:
            version: name and version of a model that the fleet knows; ("", "") is not counted.
            code: of its answer.
            replica_id: of the replica that had it last; "" for none.
        """
        if not version[0]:
            return
        if code is not grpc.StatusCode.OK:
            self._failures[*version, _REASONS.get(code, "OTHER")] += 1
            return
        self._success[version] += 1
        if replica_id:
            self._num_own[replica_id] += 1

    def forget(self, model: str, version: str) -> None:
        """Drop what was counted of a version."""
        key = model, version
        self._success.pop(key, None)
        self._past.pop(key, None)
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
        """All families.

        Counters are of type unknown: OpenMetrics, which Prometheus asks for, and the library
        have the name of a counter end in `_total`, which Triton's do not.
        """
        self._ask_now()
        yield _family(
            "nv_inference_request_success",
            "Number of successful inference requests",
            dict(self._success),
        )
        yield self._failure_family()
        yield _family(
            "nv_inference_pending_request_count",
            "Requests that this gateway has accepted and not yet answered, waiting or running",
            dict(self._num_in_flight),
            "gauge",
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
        for model, number in self._success.copy():
            own = _totals(self._own(model, int(number)))
            totals[model, number] = _added(totals.get((model, number)), own)
        return totals


def _look(answer: pb.ModelStatistics, num_own: int) -> _Look:
    return _Look(_totals(answer), answer.inference_stats.success.count, num_own)


def _totals(counted: pb.ModelStatistics) -> _Totals:
    """In the order of _OF_REPLICAS."""
    stats = counted.inference_stats
    steps = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    took_us = [part.ns / _NS_PER_US for part in (stats.success, *steps)]
    return counted.inference_count, took_us[0], counted.execution_count, *took_us[1:]


def _is_in_a_loop() -> bool:
    """Whether waiting here would stop an event loop."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return False


def _added(known: _Totals | None, more: _Totals) -> _Totals:
    return more if known is None else tuple(a + b for a, b in zip(known, more, strict=True))


def _family(
    name: str, text: str, values: Mapping[_Version, float], kind: str = "unknown"
) -> Metric:
    family = Metric(name, text, kind)
    for (model, version), value in values.items():
        family.add_sample(name, {"model": model, "version": version}, value)
    return family
