"""Both bindings record what the catalogue declares, and refuse the rest."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.contracts.errors import SmeltError
from services.telemetry import catalog
from services.telemetry.bucket_counts import BucketCounts
from services.telemetry.metric import Metric
from services.telemetry.prometheus_recorder import PrometheusRecorder, serve_metrics
from services.telemetry.recorder import Recorder

MakeRecorder = Callable[[tuple[Metric, ...]], Recorder]


def prometheus_recorder(metrics: tuple[Metric, ...]) -> Recorder:
    return PrometheusRecorder(metrics, CollectorRegistry())


def ray_recorder(metrics: tuple[Metric, ...]) -> Recorder:
    from services.telemetry.ray_recorder import RayRecorder

    return RayRecorder(metrics)


# Ray Serve's own schema uses what pydantic deprecates.
both_bindings = [
    pytest.param(prometheus_recorder, id="prometheus"),
    pytest.param(
        ray_recorder,
        id="ray",
        marks=pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20"),
    ),
]


@pytest.mark.parametrize("make", both_bindings)
class TestBothBindings:
    def test_takes_every_declared_metric(self, make: MakeRecorder) -> None:
        recorder = make(catalog.REPLICA_METRICS)
        recorder.count(
            catalog.FALLBACKS, model="m", version="1", generation="g", reason="no_engine"
        )
        recorder.observe(catalog.BATCH_SIZE, 3.0, model="m", version="1")
        labels = dict.fromkeys(catalog.ENGINE_IN_USE.labels, "x")
        recorder.set(catalog.ENGINE_IN_USE, 1.0, **labels)
        recorder.publish()

    def test_takes_a_count_of_nothing(self, make: MakeRecorder) -> None:
        make((catalog.BUILDS,)).count(
            catalog.BUILDS, 0.0, generation="g", kind="k", precision="p", outcome="o"
        )

    def test_an_observer_is_of_one_declared_series(self, make: MakeRecorder) -> None:
        recorder = make((catalog.BATCH_SIZE, catalog.BUILDS))
        recorder.observer(catalog.BATCH_SIZE, model="m", version="1")(3.0)
        with pytest.raises(SmeltError, match="expected labels"):
            recorder.observer(catalog.BATCH_SIZE, model="m")
        with pytest.raises(SmeltError, match="is a counter, not a histogram"):
            recorder.observer(catalog.BUILDS)

    def test_an_adder_is_of_one_declared_series(self, make: MakeRecorder) -> None:
        recorder = make((catalog.BATCH_SIZE, catalog.ROWS))
        recorder.adder(catalog.ROWS, model="m", version="1")()
        with pytest.raises(SmeltError, match="expected labels"):
            recorder.adder(catalog.ROWS, model="m")
        with pytest.raises(SmeltError, match="is a histogram, not a counter"):
            recorder.adder(catalog.BATCH_SIZE)

    def test_refuses_an_undeclared_metric(self, make: MakeRecorder) -> None:
        recorder = make(catalog.REPLICA_METRICS)
        with pytest.raises(SmeltError, match="'smelt_requests_total' was not declared"):
            recorder.count(catalog.REQUESTS, model="m", version="1", code="OK")

    def test_refuses_a_metric_that_only_has_a_declared_name(self, make: MakeRecorder) -> None:
        recorder = make(catalog.REPLICA_METRICS)
        with pytest.raises(SmeltError, match="was not declared"):
            recorder.observe(replace(catalog.BATCH_SIZE, labels=()), 1.0)

    @pytest.mark.parametrize(
        "labels", [{"model": "m"}, {"model": "m", "version": "1", "pod": "p"}, {}]
    )
    def test_refuses_wrong_label_names(self, make: MakeRecorder, labels: dict[str, str]) -> None:
        recorder = make(catalog.REPLICA_METRICS)
        with pytest.raises(SmeltError, match=r"expected labels \['model', 'version'\], got"):
            recorder.observe(catalog.BATCH_SIZE, 1.0, **labels)

    def test_refuses_a_wrong_kind(self, make: MakeRecorder) -> None:
        recorder = make(catalog.REPLICA_METRICS)
        with pytest.raises(SmeltError, match="is a histogram, not a gauge"):
            recorder.set(catalog.BATCH_SIZE, 1.0, model="m", version="1")


def test_prometheus_exports_values_under_the_catalogues_names() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(catalog.GATEWAY_METRICS, registry)
    recorder.count(catalog.REQUESTS, 2.0, model="m", version="1", code="OK")
    recorder.observe(catalog.REQUEST_DURATION, 0.003, model="m", version="1", code="OK")
    recorder.set(catalog.REQUESTS_IN_FLIGHT, 5.0, model="m", version="1")
    text = generate_latest(registry).decode()
    assert 'smelt_requests_total{code="OK",model="m",version="1"} 2.0' in text
    series = 'code="OK",le="{}",model="m",version="1"'
    assert f"duration_seconds_bucket{{{series.format('0.002')}}} 0.0" in text
    assert f"duration_seconds_bucket{{{series.format('0.004')}}} 1.0" in text
    assert 'duration_seconds_sum{code="OK",model="m",version="1"} 0.003' in text
    assert 'smelt_requests_in_flight{model="m",version="1"} 5.0' in text


OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("accept", [OPEN_METRICS, "text/plain"])
def test_whoever_asks_for_open_metrics_gets_exemplars(accept: str) -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(catalog.GATEWAY_METRICS, registry)
    observe = recorder.observer(catalog.REQUEST_DURATION, model="m", version="1", code="OK")
    observe(0.003, "an older one")
    observe(0.0035, TRACE)
    observe(0.5)
    server = serve_metrics(0, registry)
    asked = Request(f"http://127.0.0.1:{server.port}/metrics", headers={"Accept": accept})
    with urlopen(asked) as reply:
        kind, text = reply.headers["Content-Type"], reply.read().decode()
    server.close()
    found = [line.split(" # ")[1] for line in text.splitlines() if " # " in line]
    if accept != OPEN_METRICS:
        assert (kind.split(";")[0], found) == ("text/plain", [])
        return
    assert kind.startswith("application/openmetrics-text")
    assert [line.rsplit(" ", 1)[0] for line in found] == [f'{{trace_id="{TRACE}"}} 0.0035']
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/x", "/-/healthy"])
def test_the_metrics_port_has_nothing_but_metrics(path: str) -> None:
    """A probe of a wrong path must not pass."""
    server = serve_metrics(0, CollectorRegistry())
    try:
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{server.port}{path}")
        with refused.value as answer:
            assert answer.code == 404
            assert b"metrics are at /metrics" in answer.read()
        with urlopen(f"http://127.0.0.1:{server.port}/metrics?name[]=x") as reply:
            assert reply.status == 200
    finally:
        server.close()


def test_counts_are_kept_between_threads() -> None:
    counts = BucketCounts((1.0, 2.0))
    with ThreadPoolExecutor(4) as pool:
        for value in (0.5, 1.0, 1.5, 7.0):
            pool.submit(deque, map(counts.observe, [value] * 500), maxlen=0)
    cumulative, total, exemplars = counts.snapshot()
    assert (cumulative, total, exemplars) == ((1000, 1500, 2000), 5000.0, {})


def test_metrics_are_served_on_loopback_until_closed() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder((catalog.BUILDS,), registry)
    recorder.count(catalog.BUILDS, generation="g", kind="k", precision="p", outcome="proven")
    server = serve_metrics(0, registry)
    with urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        text = reply.read().decode()
    server.close()
    assert "smelt_builds_total" in text
    assert "_created" not in text
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{server.port}/metrics")
