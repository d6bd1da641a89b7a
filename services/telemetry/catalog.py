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
REPLICAS_READY = Metric(
    name="smelt_replicas_ready",
    kind=MetricKind.GAUGE,
    help="Replicas that the gateway may send requests to.",
    labels=("model", "version", "generation"),
)
BATCH_SIZE = Metric(
    name="smelt_batch_size",
    kind=MetricKind.HISTOGRAM,
    help="Rows in each batch that an engine ran.",
    labels=("model", "version"),
    buckets=BATCH_BUCKETS,
)
QUEUE_DURATION = Metric(
    name="smelt_queue_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time a request waited in its replica before its batch ran.",
    unit="seconds",
    labels=("model", "version"),
    buckets=INFERENCE_BUCKETS_S,
)
COMPUTE_DURATION = Metric(
    name="smelt_compute_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Time an engine took for one batch.",
    unit="seconds",
    labels=("model", "version", "generation", "kind"),
    buckets=INFERENCE_BUCKETS_S,
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

GATEWAY_METRICS = (
    REQUESTS, REQUEST_DURATION, REQUESTS_IN_FLIGHT, REQUEST_RETRIES, REPLICAS_READY,
)  # fmt: skip
REPLICA_METRICS = (
    BATCH_SIZE, QUEUE_DURATION, COMPUTE_DURATION, ENGINE_IN_USE, FALLBACKS, ENGINE_LOAD_DURATION,
)  # fmt: skip
COMPILER_METRICS = (BUILDS, BUILD_DURATION, PROOFS, PROOF_DURATION)
ALL_METRICS = GATEWAY_METRICS + REPLICA_METRICS + COMPILER_METRICS
