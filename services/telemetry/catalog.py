"""Every metric of Smelt, as data; nothing else names one.

Names are `smelt_<noun>_<unit>[_total]`. Ray exports what a replica records as
`ray_<name>`; `Metric.ray_name` owns that spelling. Times are seconds, sizes bytes.
Inference buckets start at 0.5 ms because an engine under a CUDA graph answers in less
than one; build buckets reach 30 minutes because TensorRT builds do.
"""

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Prometheus metric types that both bindings can express."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


INFERENCE_BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0,
)  # fmt: skip
BUILD_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        unit: base unit, "" for counts.
        labels: label names; every one has few values.
        buckets: upper bounds of a histogram, () otherwise.
    """

    name: str
    kind: MetricKind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def ray_name(self) -> str:
        """The name under which Ray's metrics agent exports it."""
        return f"ray_{self.name}"


REQUESTS = Metric(
    name="smelt_requests_total",
    kind=MetricKind.COUNTER,
    help="Requests answered by the gateway, by gRPC status code.",
    labels=("model", "version", "code"),
)
REQUEST_DURATION = Metric(
    name="smelt_request_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time from a request's arrival at the gateway to its answer.",
    unit="seconds",
    labels=("model", "version"),
    buckets=INFERENCE_BUCKETS_S,
)
REQUESTS_IN_FLIGHT = Metric(
    name="smelt_requests_in_flight",
    kind=MetricKind.GAUGE,
    help="Requests that the gateway has accepted and not yet answered.",
    labels=("model", "version"),
)
REQUEST_RETRIES = Metric(
    name="smelt_request_retries_total",
    kind=MetricKind.COUNTER,
    help="Requests sent to a second replica because the first was lost.",
    labels=("model", "version"),
)
CACHE_HITS = Metric(
    name="smelt_response_cache_hits_total",
    kind=MetricKind.COUNTER,
    help="Requests that the gateway answered from its response cache.",
    labels=("model", "version"),
)
CACHE_MISSES = Metric(
    name="smelt_response_cache_misses_total",
    kind=MetricKind.COUNTER,
    help="Requests of models with a response cache whose answer was not in it.",
    labels=("model", "version"),
)
REPLICAS_READY = Metric(
    name="smelt_replicas_ready",
    kind=MetricKind.GAUGE,
    help="Replicas that the gateway may send requests to.",
    labels=("model", "version", "generation"),
)
CONTROLLER_CONNECTED = Metric(
    name="smelt_controller_connected",
    kind=MetricKind.GAUGE,
    help="1 while the gateway hears its controller; without it, it keeps the last known fleet.",
)
BATCH_SIZE = Metric(
    name="smelt_batch_size",
    kind=MetricKind.HISTOGRAM,
    help="Rows in each batch that an engine ran.",
    labels=("model", "version"),
    buckets=BATCH_BUCKETS,
)
ROWS = Metric(
    name="smelt_rows_total",
    kind=MetricKind.COUNTER,
    help="Rows that engines ran; requests bring one or more.",
    labels=("model", "version"),
)
QUEUE_DURATION = Metric(
    name="smelt_queue_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time a request waited in its replica before its batch ran.",
    unit="seconds",
    labels=("model", "version"),
    buckets=INFERENCE_BUCKETS_S,
)
QUEUE_REQUESTS = Metric(
    name="smelt_queue_requests",
    kind=MetricKind.GAUGE,
    help="Requests that wait in a replica now.",
    labels=("model", "version", "generation"),
)
QUEUE_LIMIT = Metric(
    name="smelt_queue_limit",
    kind=MetricKind.GAUGE,
    help="Requests that may wait in a replica before it refuses more.",
    labels=("model", "version", "generation"),
)
COMPUTE_DURATION = Metric(
    name="smelt_compute_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time an engine took for one batch.",
    unit="seconds",
    labels=("model", "version", "generation", "kind"),
    buckets=INFERENCE_BUCKETS_S,
)
ENGINE_BUSY = Metric(
    name="smelt_engine_busy_seconds_total",
    kind=MetricKind.COUNTER,
    help="Time for which an engine ran.",
    unit="seconds",
    labels=("model", "version", "generation", "kind"),
)
ENGINE_IN_USE = Metric(
    name="smelt_engine_in_use",
    kind=MetricKind.GAUGE,
    help="1 for the engine that a replica serves with; kind `fallback` has no digest.",
    labels=("model", "version", "generation", "kind", "precision", "digest"),
)
FALLBACKS = Metric(
    name="smelt_fallbacks_total",
    kind=MetricKind.COUNTER,
    help="Times a replica chose the fallback, by reason.",
    labels=("model", "version", "generation", "reason"),
)
ENGINE_RETURNS = Metric(
    name="smelt_engine_returns_total",
    kind=MetricKind.COUNTER,
    help="Times an engine failed in service and the one before it served again.",
    labels=("model", "version", "generation", "kind"),
)
ENGINE_LOAD_DURATION = Metric(
    name="smelt_engine_load_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time to verify, load and warm an engine in a replica.",
    unit="seconds",
    labels=("model", "version", "kind"),
    buckets=BUILD_BUCKETS_S,
)
BUILDS = Metric(
    name="smelt_builds_total",
    kind=MetricKind.COUNTER,
    help="Builds that ended, by outcome.",
    labels=("generation", "kind", "precision", "outcome"),
)
BUILD_DURATION = Metric(
    name="smelt_build_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time of the builder alone.",
    unit="seconds",
    labels=("generation", "kind", "precision"),
    buckets=BUILD_BUCKETS_S,
)
PROOFS = Metric(
    name="smelt_proofs_total",
    kind=MetricKind.COUNTER,
    help="Proofs that ended, by outcome.",
    labels=("generation", "kind", "precision", "outcome"),
)
PROOF_DURATION = Metric(
    name="smelt_proof_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time to compare and measure one engine.",
    unit="seconds",
    labels=("generation", "kind", "precision"),
    buckets=BUILD_BUCKETS_S,
)
BUILD_STATE = Metric(
    name="smelt_build_state",
    kind=MetricKind.GAUGE,
    help="1 for the outcome of the newest attempt to build an engine of a model, 0 for others.",
    labels=("model", "version", "generation", "kind", "precision", "outcome"),
)
ENGINES = Metric(
    name="smelt_engines",
    kind=MetricKind.GAUGE,
    help="Published engines of a model, by the outcome of their newest proof.",
    labels=("model", "version", "generation", "kind", "outcome"),
)
REPLICAS_WANTED = Metric(
    name="smelt_replicas_wanted",
    kind=MetricKind.GAUGE,
    help="Replicas that the controller wants to serve a model version.",
    labels=("model", "version"),
)
REPLICAS_ATTACHED = Metric(
    name="smelt_replicas_attached",
    kind=MetricKind.GAUGE,
    help="Replicas attached to the controller, by state and by the engine they serve with.",
    labels=("model", "version", "generation", "kind", "state"),
)
BUILDS_RUNNING = Metric(
    name="smelt_builds_running",
    kind=MetricKind.GAUGE,
    help="Build tasks that were launched and have not ended.",
    labels=("model", "generation"),
)
BUILDS_WAITING = Metric(
    name="smelt_builds_waiting",
    kind=MetricKind.GAUGE,
    help="Build tasks that run nowhere yet: no node has room, or their image cannot be pulled.",
    labels=("model", "generation"),
)
KEYS_QUARANTINED = Metric(
    name="smelt_keys_quarantined",
    kind=MetricKind.GAUGE,
    help="Planned engines that failed too often and are not tried any more.",
    labels=("model", "generation"),
)
GENERATIONS_WITHOUT_ENGINE = Metric(
    name="smelt_generation_without_engine",
    kind=MetricKind.GAUGE,
    help="1 while a generation has nodes and no proven engine of a version that is to serve there.",
    labels=("model", "generation"),
)
STORE_REQUESTS = Metric(
    name="smelt_store_requests_total",
    kind=MetricKind.COUNTER,
    help="Requests to the artifact store; an error is a fault of the store, not an absent key.",
    labels=("operation", "outcome"),
)

GATEWAY_METRICS = (
    REQUESTS, REQUEST_DURATION, REQUESTS_IN_FLIGHT, REQUEST_RETRIES, REPLICAS_READY,
    CONTROLLER_CONNECTED, CACHE_HITS, CACHE_MISSES,
)  # fmt: skip
REPLICA_METRICS = (
    BATCH_SIZE, ROWS, QUEUE_DURATION, QUEUE_REQUESTS, QUEUE_LIMIT, COMPUTE_DURATION, ENGINE_BUSY,
    ENGINE_IN_USE, FALLBACKS, ENGINE_RETURNS, ENGINE_LOAD_DURATION, STORE_REQUESTS,
)  # fmt: skip
# What builds did stands in the store; the controller counts it there, so that figures of
# compilers that live for seconds are not lost. A compiler's own endpoint is for one run by hand.
COMPILER_METRICS = (BUILDS, BUILD_DURATION, PROOFS, PROOF_DURATION)
BUILD_LOOP_METRICS = (BUILDS_RUNNING, BUILDS_WAITING, KEYS_QUARANTINED, GENERATIONS_WITHOUT_ENGINE)
CONTROLLER_METRICS = (
    *COMPILER_METRICS, *BUILD_LOOP_METRICS, BUILD_STATE, ENGINES, REPLICAS_WANTED,
    REPLICAS_ATTACHED, STORE_REQUESTS,
)  # fmt: skip
ALL_METRICS = tuple(
    dict.fromkeys(GATEWAY_METRICS + REPLICA_METRICS + COMPILER_METRICS + CONTROLLER_METRICS)
)
