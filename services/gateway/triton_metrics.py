"""Triton's own metrics, `nv_inference_*`, for dashboards and agents made for Triton.

Durations, samples and runs of engines are those of ModelStatistics: replicas count them, the
response cache adds its hits. A replica counts for all gateways together; each gateway exports the
share that its own answers are of all the replica's answers, in whole numbers, so that sums over
gateways are right. A gateway counts successes and failures itself as it answers, also of requests
that reached no replica. Replicas are asked with each scrape, and at intervals, for those that end.
They cannot export these names themselves, as Ray adds a prefix to each.
There is no `nv_gpu_*`: a gateway has no GPU to measure. NVIDIA's DCGM exporter measures them.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple

import grpc
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from services.gateway.api.fleet_statistics import OwnStatistics, ask_statistics
from services.gateway.pipeline.inference import InferenceCall, RequestObserver, RequestOutcome
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.upstream.endpoint import Endpoint
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
_LABELS: Final = ("model", "version", "reason")
_UNTYPED: Final = re.compile(rb"^(# TYPE nv_\w+) (?:unknown|untyped)$", re.MULTILINE)
_Version = tuple[str, str]
_Totals = tuple[float, ...]


def typed_as_counters(page: bytes) -> bytes:
    """A page of metrics with Triton's counters typed as Triton types them.

    The library names a counter `_total`, as OpenMetrics wants, and Triton's names do not end so.
    """
    return _UNTYPED.sub(rb"\1 counter", page)


class _Counted(NamedTuple):
    """What a replica had counted, and how many of its answers were this gateway's.

    Attributes:
        totals: in the order of _OF_REPLICAS.
    """

    totals: _Totals
    num_answers: int
    num_own: int


_NOTHING: Final = _Counted((0.0,) * len(_OF_REPLICAS), 0, 0)


class _ReplicaShare:
    """This gateway's share of what one replica counted; it never falls."""

    def __init__(self, version: _Version, first: _Counted) -> None:
        self.version = version
        self.totals = _NOTHING.totals
        # What was answered before this gateway started was not its own.
        self._base = _NOTHING if first.num_answers <= first.num_own else first
        self.take(first)

    def take(self, now: _Counted) -> None:
        """Count what is new."""
        base = self._base
        num_answers = now.num_answers - self._base.num_answers
        share = min((now.num_own - base.num_own) / num_answers, 1.0) if num_answers else 0.0
        self.totals = tuple(
            max(known, (total - before) * share)
            for known, total, before in zip(self.totals, now.totals, base.totals, strict=True)
        )


class TritonMetrics(RequestObserver, Collector):
    """Counts as Triton does; used from the event loop, collected from any other thread."""

    def __init__(self, num_in_flight: Mapping[_Version, int], own: OwnStatistics) -> None:
        """Begin at zero.

        Args:
            num_in_flight: requests by model and version, kept up to date by its owner.
            own: what this gateway counted of requests that no replica had, its cache's hits.
        """
        self._num_in_flight = num_in_flight
        self._own = own
        self._success: defaultdict[_Version, int] = defaultdict(int)
        self._failures: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._num_own: defaultdict[str, int] = defaultdict(int)
        self._shares: dict[str, _ReplicaShare] = {}
        # Of replicas that ended.
        self._past: dict[_Version, _Totals] = {}
        # One round at a time: an answer that came late would undo a newer one's share.
        self._turn = asyncio.Lock()
        self._endpoints: EndpointSet | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self, call: InferenceCall, outcome: RequestOutcome) -> None:
        """Count by model, status and replica; a model that the fleet does not know is not."""
        code = outcome.code
        if not call.model:
            return
        if code is not grpc.StatusCode.OK:
            self._failures[call.model, call.version, _REASONS.get(code, "OTHER")] += 1
            return
        self._success[call.model, call.version] += 1
        if call.replica_id:
            self._num_own[call.replica_id] += 1

    def forget(self, model: str, version: str) -> None:
        """Drop what was counted of a version."""
        key = model, version
        self._success.pop(key, None)
        self._past.pop(key, None)
        for failed in [failed for failed in self._failures if failed[:2] == key]:
            del self._failures[failed]

    async def follow(self, endpoints: EndpointSet) -> None:
        """Poll the replicas at intervals, until cancelled; new ones at once.

        What a replica counted before it was asked for the first time cannot be attributed.
        """
        self._endpoints = endpoints
        self._loop = asyncio.get_running_loop()
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
        """Poll them once; those that were known and are not among them have ended."""
        # Before the wait: a replica that answers its first request meanwhile is not listed yet.
        had_answered = set(self._num_own)
        answers = await asyncio.gather(*map(ask_statistics, endpoints))
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if answer is not None:
                self._take(endpoint, answer)
        here = {endpoint.replica.replica_id for endpoint in endpoints}
        for replica_id in self._shares.keys() - here:
            ended = self._shares.pop(replica_id)
            self._past[ended.version] = _added(self._past.get(ended.version), ended.totals)
        # Also of those that ended before they were ever asked.
        for replica_id in had_answered - here:
            del self._num_own[replica_id]

    def _take(self, endpoint: Endpoint, answer: pb.ModelStatistics) -> None:
        replica = endpoint.replica
        num_answers = answer.inference_stats.success.count
        counted = _Counted(_totals(answer), num_answers, self._num_own[replica.replica_id])
        if known := self._shares.get(replica.replica_id):
            known.take(counted)
        else:
            version = (replica.model_name, str(replica.model_version))
            self._shares[replica.replica_id] = _ReplicaShare(version, counted)

    def describe(self) -> list[Metric]:
        """Nothing: registering must not poll the replicas."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families; counters are of type unknown until `typed_as_counters`."""
        self._ask_now()
        yield _family(
            "nv_inference_request_success",
            "Number of successful inference requests",
            self._success.copy().items(),
        )
        yield _family(
            "nv_inference_request_failure",
            "Number of failed inference requests",
            self._failures.copy().items(),
        )
        yield _family(
            "nv_inference_pending_request_count",
            "Requests that this gateway has accepted and not yet answered, waiting or running",
            dict(self._num_in_flight).items(),
            "gauge",
        )
        totals = self._totals()
        for at, (name, text) in enumerate(_OF_REPLICAS.items()):
            values = {version: round(found[at]) for version, found in totals.items()}
            yield _family(name, text, values.items())

    def _ask_now(self) -> None:
        """Poll the replicas, from the thread of a scrape, and wait for their answers a little."""
        endpoints = self._endpoints
        loop = self._loop
        if endpoints is None or loop is None or not loop.is_running():
            return
        look = asyncio.run_coroutine_threadsafe(self._look_at_all(endpoints), loop)
        try:
            look.result(SCRAPE_ASKS_S)
        except (TimeoutError, CancelledError):
            look.cancel()

    def _totals(self) -> dict[_Version, _Totals]:
        totals = self._past.copy()
        for share in list(self._shares.values()):
            totals[share.version] = _added(totals.get(share.version), share.totals)
        for model, number in self._success.copy():
            own = _totals(self._own(model, int(number)))
            totals[model, number] = _added(totals.get((model, number)), own)
        return totals


def _totals(counted: pb.ModelStatistics) -> _Totals:
    """In the order of _OF_REPLICAS."""
    stats = counted.inference_stats
    steps = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    took_us = [part.ns / _NS_PER_US for part in (stats.success, *steps)]
    return counted.inference_count, took_us[0], counted.execution_count, *took_us[1:]


def _added(known: _Totals | None, more: _Totals) -> _Totals:
    return more if known is None else tuple(a + b for a, b in zip(known, more, strict=True))


def _family(
    name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], kind: str = "unknown"
) -> Metric:
    family = Metric(name, text, kind)
    for labels, value in values:
        family.add_sample(name, dict(zip(_LABELS, labels, strict=False)), value)
    return family
