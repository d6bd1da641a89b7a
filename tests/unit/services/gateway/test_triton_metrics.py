"""Triton's metrics: a gateway's share of what replicas count, and names as Triton has them."""

import asyncio
import re
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from services.gateway.pipeline.inference import InferenceCall, RequestOutcome
from services.gateway.triton_metrics import TritonMetrics, typed_as_counters
from services.pb import open_inference_v2_pb2 as pb
from services.telemetry.prometheus_recorder import serve_metrics

VERSION = ("m", "3")
LABELS = {"model": "m", "version": "3"}


class CountingReplica:
    """Statistics of a replica in which each request takes as long as the others."""

    def __init__(self, replica_id: str) -> None:
        self.replica = SimpleNamespace(
            replica_id=replica_id, model_name=VERSION[0], model_version=int(VERSION[1])
        )
        self.connection = self
        self.num_answers = 0
        self.num_ran: int | None = None

    async def statistics(self) -> pb.ModelStatistics:
        """Each batch of one request, unless it is said how often the engine ran."""
        count = self.num_answers
        took = pb.StatisticDuration(count=count, ns=count * 7_000_000)
        stats = pb.InferStatistics(
            success=took, queue=took, compute_input=took, compute_infer=took, compute_output=took
        )
        return pb.ModelStatistics(
            inference_count=2 * count,
            execution_count=count if self.num_ran is None else self.num_ran,
            inference_stats=stats,
        )


class Gateway:
    """A gateway's counts, and what a scrape of it shows."""

    def __init__(self) -> None:
        self.in_flight: dict[tuple[str, str], int] = {}
        self.cache = pb.ModelStatistics()
        self.metrics = TritonMetrics(self.in_flight, lambda *_: self.cache)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def answered(self, replica: CountingReplica, count: int) -> None:
        """So many requests of this gateway were answered by a replica."""
        replica.num_answers += count
        for _ in range(count):
            self.ended(VERSION, grpc.StatusCode.OK, replica.replica.replica_id)

    def ended(self, version: tuple[str, str], code: grpc.StatusCode, replica_id: str) -> None:
        """A request of this gateway was answered or refused; "" for no replica."""
        call = InferenceCall(b"", model=version[0], version=version[1], replica_id=replica_id)
        self.metrics.end(call, RequestOutcome(code, 0.1))

    def look(self, *replicas: Any) -> None:
        """Ask these."""
        asyncio.run(self.metrics.look([*replicas]))

    def value(self, name: str, **more: str) -> float | None:
        """Of one series."""
        return self.registry.get_sample_value(f"nv_inference_{name}", LABELS | more)


def test_one_gateway_has_all_that_its_replicas_count() -> None:
    gateway, replicas = Gateway(), (CountingReplica("a"), CountingReplica("b"))
    for _ in range(3):
        for replica in replicas:
            gateway.answered(replica, 5)
        gateway.look(*replicas)
    assert gateway.value("request_success") == gateway.value("exec_count") == 30
    assert gateway.value("count") == 60
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        assert gateway.value(f"{name}_duration_us") == 30 * 7000


def test_two_gateways_share_what_a_replica_counts() -> None:
    one, other, replica = Gateway(), Gateway(), CountingReplica("a")
    one.look(replica)
    other.look(replica)
    for _ in range(4):
        one.answered(replica, 3)
        other.answered(replica, 1)
        one.look(replica)
        other.look(replica)
    assert (one.value("exec_count"), other.value("exec_count")) == (12, 4)


def test_shares_are_whole_numbers() -> None:
    gateways, replica = [Gateway() for _ in range(3)], CountingReplica("a")
    for gateway in gateways:
        gateway.look(replica)
    for num, gateway in enumerate(gateways, 1):
        gateway.answered(replica, num)
    replica.num_ran = 2  # they shared runs
    for gateway in gateways:
        gateway.look(replica)
    shares = [gateway.value("exec_count") for gateway in gateways]
    assert shares == [0, 1, 1]
    took = [gateway.value("queue_duration_us") for gateway in gateways]
    assert took == [7000, 14000, 21000]


def test_what_the_cache_answered_is_no_inference() -> None:
    gateway = Gateway()
    gateway.ended(VERSION, grpc.StatusCode.OK, "")
    gateway.cache.inference_stats.success.ns = 250_000_000
    assert (gateway.value("request_success"), gateway.value("count")) == (1, 0)
    assert gateway.value("request_duration_us") == 250_000


def test_what_was_before_a_gateway_is_not_its_own() -> None:
    first, second, replica = Gateway(), Gateway(), CountingReplica("a")
    first.answered(replica, 100)
    second.look(replica)
    second.answered(replica, 10)
    second.look(replica)
    assert second.value("exec_count") == 10


def test_what_a_lost_replica_counted_stays() -> None:
    gateway, lost, new = Gateway(), CountingReplica("a"), CountingReplica("b")
    gateway.answered(lost, 8)
    gateway.look(lost)
    gateway.look()
    assert gateway.value("exec_count") == 8
    gateway.answered(new, 2)
    gateway.look(new)
    assert gateway.value("exec_count") == 10


def test_one_that_was_never_asked_leaves_nothing_behind() -> None:
    gateway = Gateway()
    gateway.answered(CountingReplica("a"), 1)
    gateway.look()
    # Else this answer of one of that name, to another gateway, would be taken for its own.
    again = CountingReplica("a")
    again.num_answers = 1
    gateway.look(again)
    assert gateway.value("exec_count") == 0


def test_statistics_that_are_none_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    gateway, good, bad = Gateway(), CountingReplica("a"), CountingReplica("b")

    async def nonsense() -> pb.ModelStatistics:
        return pb.ModelStatistics.FromString(b"\xff\xff")

    bad.statistics = nonsense  # type: ignore[method-assign]
    gateway.answered(good, 3)
    gateway.look(bad, good)
    assert gateway.value("exec_count") == 3
    assert "replica b gave no statistics" in caplog.text


def test_one_that_comes_during_a_look_is_not_forgotten() -> None:
    gateway, known, new = Gateway(), CountingReplica("a"), CountingReplica("b")
    gateway.answered(known, 1)
    asked = known.statistics

    async def statistics() -> pb.ModelStatistics:
        gateway.answered(new, 4)
        return await asked()

    known.statistics = statistics  # type: ignore[method-assign]
    gateway.look(known)
    known.statistics = asked  # type: ignore[method-assign]
    gateway.look(known, new)
    assert gateway.value("exec_count") == 5


def test_failures_by_tritons_reasons() -> None:
    gateway = Gateway()
    codes = grpc.StatusCode
    for code in (
        codes.UNAVAILABLE,
        codes.RESOURCE_EXHAUSTED,
        codes.CANCELLED,
        codes.INTERNAL,
        codes.INVALID_ARGUMENT,
    ):
        gateway.ended(VERSION, code, "a")
    gateway.ended(("", ""), codes.NOT_FOUND, "")
    found = {
        reason: gateway.value("request_failure", reason=reason)
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    }
    assert found == {"REJECTED": 2, "CANCELED": 1, "BACKEND": 1, "OTHER": 1}
    assert gateway.value("request_success") is None


@pytest.mark.parametrize(
    "accept", ["text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"]
)
def test_both_formats_have_tritons_names_and_types(accept: str) -> None:
    gateway = Gateway()
    gateway.in_flight[VERSION] = 4
    gateway.answered(CountingReplica("a"), 1)
    gateway.ended(VERSION, grpc.StatusCode.INTERNAL, "a")
    server = serve_metrics(0, gateway.registry, rewrite=typed_as_counters)
    headers = {"Accept": accept, "Accept-Encoding": "gzip"}
    try:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        page = answer.read().decode()
    finally:
        server.close()
    assert answer.getheader("Content-Type", "").startswith(accept.partition(";")[0])
    assert 'nv_inference_request_success{model="m",version="3"} 1.0' in page
    assert 'nv_inference_pending_request_count{model="m",version="3"} 4.0' in page
    assert 'nv_inference_request_failure{model="m",reason="BACKEND",version="3"} 1.0' in page
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    assert types.pop("nv_inference_pending_request_count") == "gauge"
    assert len(types) == 9
    assert set(types.values()) == {"counter"}


def test_a_workers_page_can_be_read_by_the_process_that_started_it() -> None:
    gateway = Gateway()
    gateway.answered(CountingReplica("a"), 1)
    page = exposition.generate_latest(gateway.registry).decode()
    families = list(text_string_to_metric_families(page))
    assert "nv_inference_request_success" in {s.name for f in families for s in f.samples}
