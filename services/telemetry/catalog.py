"""Every metric of Smelt, as data; nothing else names one.

Names are `smelt_<noun>_<unit>[_total]`. Ray exports what a replica records as
`ray_<name>`; `Metric.ray_name` (`metric.py`) owns that spelling. Times are seconds, sizes bytes.
Inference buckets start at 0.5 ms because an engine under a CUDA graph answers in less
than one; build buckets reach 30 minutes because TensorRT builds do.
"""

from itertools import chain

from services.telemetry.metric import counter as _counter
from services.telemetry.metric import gauge as _gauge
from services.telemetry.metric import histogram as _histogram

INFERENCE_BUCKETS_S = (*(0.0005 * 2**n for n in range(11)), 1.0, 2.0, 5.0)
# What a gateway or a replica does beside an engine takes microseconds.
STAGE_BUCKETS_S = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5)
BUILD_BUCKETS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
# Lengths that engines like to be built for; `smelt buckets` proposes no others.
_STEPS = (range(8, 128, 8), range(128, 256, 16), range(256, 512, 32), range(512, 1024, 64))
_SIZES = (1, 2, 4, *chain.from_iterable(_STEPS), 1024, 2048, 4096, 8192)
SIZE_BUCKETS = tuple(map(float, _SIZES))

REQUESTS = _counter(
    "smelt_requests_total",
    "Requests answered by the gateway, by gRPC status code.",
    ("model", "version", "code"),
)
REQUEST_DURATION = _histogram(
    "smelt_request_duration_seconds",
    "Time from a request's arrival at the gateway to its answer, by gRPC status code.",
    ("model", "version", "code"),
    INFERENCE_BUCKETS_S,
)
GATEWAY_DURATION = _histogram(
    "smelt_gateway_duration_seconds",
    "Time of a request in the gateway itself: all but the waiting for replicas.",
    ("model", "version", "code"),
    STAGE_BUCKETS_S,
)
REPLICA_DURATION = _histogram(
    "smelt_replica_duration_seconds",
    "Time from sending a request to a replica to its answer, as the gateway sees it.",
    ("model", "version", "generation", "kind"),
    INFERENCE_BUCKETS_S,
)
REQUESTS_IN_FLIGHT = _gauge(
    "smelt_requests_in_flight",
    "Requests that the gateway has accepted and not yet answered.",
    ("model", "version"),
)
REQUEST_MEMORY = _gauge(
    "smelt_request_memory_bytes",
    "Memory of the gateway that large requests lie in while replicas of its host read them.",
    unit="bytes",
)
REQUEST_MEMORY_LIMIT = _gauge(
    "smelt_request_memory_limit_bytes",
    "How much of that there is; large requests beyond it are copied to replicas.",
    unit="bytes",
)
CONNECTIONS = _gauge("smelt_gateway_connections", "Clients that are connected to the gateway.")
CONNECTIONS_ENDED = _counter(
    "smelt_gateway_connections_ended_total",
    "Connections that ended, by reason: client, idle, age, limit, flood, protocol, silent, unread, "
    "stopped or internal.",
    ("reason",),
)
REQUEST_RETRIES = _counter(
    "smelt_request_retries_total",
    "Requests sent to a second replica because the first was lost.",
    ("model", "version"),
)
REQUESTS_HELD = _gauge(
    "smelt_requests_held",
    "Requests that wait in the gateway for a replica, as the last one of their version was lost.",
    ("model", "version"),
)
HELD_DURATION = _histogram(
    "smelt_request_held_duration_seconds",
    "How long requests waited for a replica, by what became of them: sent, refused, expired or "
    "cancelled.",
    ("model", "version", "outcome"),
    BUILD_BUCKETS_S,
)
REQUESTS_REJECTED = _counter(
    "smelt_requests_rejected_total",
    "Requests refused as overload, by whose bound was reached: gateway, model, replica or memory.",
    ("model", "version", "reason"),
)
REQUESTS_EXPIRED = _counter(
    "smelt_requests_expired_total",
    "Requests whose deadline passed, by whether a replica had them: unsent or unanswered.",
    ("model", "version", "reason"),
)
REQUESTS_CANCELLED = _counter(
    "smelt_requests_cancelled_total",
    "Requests that their clients gave up, by whether a replica had them: unsent or unanswered.",
    ("model", "version", "reason"),
)
CACHE_HITS = _counter(
    "smelt_response_cache_hits_total",
    "Requests that the gateway answered from its response cache.",
    ("model", "version"),
)
CACHE_MISSES = _counter(
    "smelt_response_cache_misses_total",
    "Requests of models with a response cache whose answer was not in it.",
    ("model", "version"),
)
REPLICAS_READY = _gauge(
    "smelt_replicas_ready",
    "Replicas that the gateway may send requests to.",
    ("model", "version", "generation"),
)
REPLICA_EJECTIONS = _counter(
    "smelt_replica_ejections_total",
    "Times a gateway sent a replica no requests for a while, by reason.",
    ("model", "version", "generation", "reason"),
)
CONTROLLER_CONNECTED = _gauge(
    "smelt_controller_connected",
    "1 while the gateway is connected to its controller; else it keeps the last known fleet.",
)
ACCESS_LOG_DROPPED = _counter(
    "smelt_access_log_dropped_total",
    "Lines of the access log that were left out, as the disk did not keep up.",
)
WORKERS_SERVING = _gauge(
    "smelt_gateway_workers_serving",
    "Processes that serve on the port of a gateway with several workers.",
)
WORKER_RESTARTS = _counter(
    "smelt_gateway_worker_restarts_total", "Workers of a gateway that ended and were started again."
)
BATCH_SIZE = _histogram(
    "smelt_batch_size",
    "Rows in each batch that an engine ran.",
    ("model", "version"),
    BATCH_BUCKETS,
    unit="",
)
ROWS = _counter(
    "smelt_rows_total", "Rows that engines ran; requests bring one or more.", ("model", "version")
)
REQUEST_SIZE = _histogram(
    "smelt_request_size",
    "Size of each dynamic dimension of the requests that engines ran.",
    ("model", "version", "dimension"),
    SIZE_BUCKETS,
    unit="",
)
REAL_ELEMENTS = _counter(
    "smelt_real_elements_total",
    "Elements of the requests that engines ran: the product of their dynamic dimensions.",
    ("model", "version"),
)
PADDED_ELEMENTS = _counter(
    "smelt_padded_elements_total",
    "Elements that engines computed beside those of the requests.",
    ("model", "version"),
)
QUEUE_DROPPED = _counter(
    "smelt_queue_dropped_total",
    "Requests that got no answer in time, by reason: refused, expired, cancelled, discarded.",
    ("model", "version", "reason"),
)
SAMPLES = _counter(
    "smelt_samples_total",
    "Rows of requests that the recipe has sampled, by outcome: written, lost.",
    ("model", "version", "outcome"),
)
QUEUE_DURATION = _histogram(
    "smelt_queue_duration_seconds",
    "Time a request waited in its replica before its batch ran.",
    ("model", "version", "generation", "kind"),
    INFERENCE_BUCKETS_S,
)
FORMING_DURATION = _histogram(
    "smelt_batch_forming_duration_seconds",
    "Time from when the engine is free and a request waits to the start of the batch.",
    ("model", "version", "generation", "kind"),
    STAGE_BUCKETS_S,
)
PAD_DURATION = _histogram(
    "smelt_pad_duration_seconds",
    "Time to join the inputs of a batch, padding included.",
    ("model", "version", "generation", "kind"),
    STAGE_BUCKETS_S,
)
REPLY_DURATION = _histogram(
    "smelt_reply_duration_seconds",
    "Time to split the outputs of a batch and to write its answers.",
    ("model", "version", "generation", "kind"),
    STAGE_BUCKETS_S,
)
QUEUE_REQUESTS = _gauge(
    "smelt_queue_requests",
    "Requests that wait in a replica now.",
    ("model", "version", "generation"),
)
QUEUE_USED = _gauge(
    "smelt_queue_used_ratio",
    "Share of the fullest bound of a replica's queue that is taken; at 1 it refuses requests.",
    ("model", "version", "generation"),
)
COMPUTE_DURATION = _histogram(
    "smelt_compute_duration_seconds",
    "Time an engine took for one batch.",
    ("model", "version", "generation", "kind"),
    INFERENCE_BUCKETS_S,
)
ENGINE_BUSY = _counter(
    "smelt_engine_busy_seconds_total",
    "Time for which an engine ran.",
    ("model", "version", "generation", "kind"),
    unit="seconds",
)
ENGINE_IN_USE = _gauge(
    "smelt_engine_in_use",
    "1 for the engine that a replica serves with; kind `fallback` has no digest.",
    ("model", "version", "generation", "kind", "precision", "digest"),
)
FALLBACKS = _counter(
    "smelt_fallbacks_total",
    "Times a replica chose the fallback, by reason.",
    ("model", "version", "generation", "reason"),
)
FALLBACKS_REFUTED = _counter(
    "smelt_fallbacks_refuted_total",
    "Times ONNX Runtime was the fallback as torch's answers wrong, by what showed it.",
    ("model", "version", "generation", "reason"),
)
ENGINE_RETURNS = _counter(
    "smelt_engine_returns_total",
    "Times an engine failed in service and the one before it served again.",
    ("model", "version", "generation", "kind"),
)
ENGINE_LOAD_DURATION = _histogram(
    "smelt_engine_load_duration_seconds",
    "Time to verify, load and warm an engine in a replica.",
    ("model", "version", "kind"),
    BUILD_BUCKETS_S,
)
BUILDS = _counter(
    "smelt_builds_total",
    "Builds that ended, by outcome.",
    ("generation", "kind", "precision", "outcome"),
)
BUILD_DURATION = _histogram(
    "smelt_build_duration_seconds",
    "Time of the builder alone.",
    ("generation", "kind", "precision"),
    BUILD_BUCKETS_S,
)
PROOFS = _counter(
    "smelt_proofs_total",
    "Proofs that ended, by outcome.",
    ("generation", "kind", "precision", "outcome"),
)
PROOF_DURATION = _histogram(
    "smelt_proof_duration_seconds",
    "Time to compare and measure one engine.",
    ("generation", "kind", "precision"),
    BUILD_BUCKETS_S,
)
BUILD_STATE = _gauge(
    "smelt_build_state",
    "1 for the outcome of the newest attempt to build an engine of a model, 0 for others; refused: "
    "its proof failed, and the recipe leaves the precision to auto.",
    ("model", "version", "generation", "kind", "precision", "outcome"),
)
ENGINES = _gauge(
    "smelt_engines",
    "Published engines of a model, by the outcome of their newest proof; refused: it failed, and "
    "the recipe leaves the precision to auto.",
    ("model", "version", "generation", "kind", "outcome"),
)
REPLICAS_WANTED = _gauge(
    "smelt_replicas_wanted",
    "Replicas that the controller wants to serve a model version.",
    ("model", "version"),
)
REPLICAS_ATTACHED = _gauge(
    "smelt_replicas_attached",
    "Replicas attached to the controller, by state, engine, and the reason for a fallback.",
    ("model", "version", "generation", "kind", "state", "reason"),
)
MODELS_UNPLACED = _gauge(
    "smelt_models_unplaced",
    "1 while replicas of a model version are on no node, as none has room for them.",
    ("model", "version"),
)
CONTROLLER_BUILDS = _gauge(
    "smelt_controller_builds",
    "1 while this controller builds for its store; 0 while it stands by for another controller.",
)
BUILDS_RUNNING = _gauge(
    "smelt_builds_running",
    "Build tasks that were launched and have not ended.",
    ("model", "generation"),
)
BUILDS_WAITING = _gauge(
    "smelt_builds_waiting",
    "Build tasks that run nowhere yet: no node has room, or their image cannot be pulled.",
    ("model", "generation"),
)
KEYS_QUARANTINED = _gauge(
    "smelt_keys_quarantined",
    "Planned engines that failed too often and are not tried any more.",
    ("model", "generation"),
)
GENERATIONS_WITHOUT_ENGINE = _gauge(
    "smelt_generation_without_engine",
    "1 while a generation has nodes and no proven engine of a version that is to serve there.",
    ("model", "generation"),
)
STORE_REQUESTS = _counter(
    "smelt_store_requests_total",
    "Requests to the artifact store; an error is a fault of the store, not an absent key.",
    ("operation", "outcome"),
)

_ANSWERS = (REQUESTS, REQUEST_DURATION, GATEWAY_DURATION, REPLICA_DURATION, REQUESTS_IN_FLIGHT)
_FAILURES = (REQUEST_RETRIES, REQUESTS_REJECTED, REQUESTS_EXPIRED, REQUESTS_CANCELLED)
_HELD = (REQUESTS_HELD, HELD_DURATION)
_ENDPOINTS = (REPLICAS_READY, REPLICA_EJECTIONS, CONTROLLER_CONNECTED)
_CACHE = (CACHE_HITS, CACHE_MISSES)
_SERVER = (ACCESS_LOG_DROPPED, REQUEST_MEMORY, REQUEST_MEMORY_LIMIT, CONNECTIONS, CONNECTIONS_ENDED)
GATEWAY_METRICS = _ANSWERS + _FAILURES + _HELD + _ENDPOINTS + _CACHE + _SERVER
# Of the process above several workers; a gateway of one process has none.
GATEWAY_WORKERS_METRICS = (WORKERS_SERVING, WORKER_RESTARTS)
_RUN_SIZES = (REQUEST_SIZE, REAL_ELEMENTS, PADDED_ELEMENTS, BATCH_SIZE, ROWS)
_STAGES = (QUEUE_DURATION, FORMING_DURATION, PAD_DURATION, COMPUTE_DURATION, REPLY_DURATION)
_QUEUE = (QUEUE_REQUESTS, QUEUE_USED, QUEUE_DROPPED)
_ENGINE = (ENGINE_BUSY, ENGINE_IN_USE, ENGINE_RETURNS, ENGINE_LOAD_DURATION)
_FALLBACK = (FALLBACKS, FALLBACKS_REFUTED)
REPLICA_METRICS = (*_RUN_SIZES, *_STAGES, *_QUEUE, *_ENGINE, *_FALLBACK, SAMPLES, STORE_REQUESTS)
# The store has the outcomes of builds; the controller counts them there, so that the figures of
# compilers that run for seconds are not lost. A compiler's own endpoint is for runs by hand.
COMPILER_METRICS = (BUILDS, BUILD_DURATION, PROOFS, PROOF_DURATION)
_BUILD_TASKS = (CONTROLLER_BUILDS, BUILDS_RUNNING, BUILDS_WAITING)
BUILD_LOOP_METRICS = (*_BUILD_TASKS, KEYS_QUARANTINED, GENERATIONS_WITHOUT_ENGINE)
_OUTCOMES = (*COMPILER_METRICS, *BUILD_LOOP_METRICS, BUILD_STATE, ENGINES)
_PLACEMENT = (REPLICAS_WANTED, REPLICAS_ATTACHED, MODELS_UNPLACED)
CONTROLLER_METRICS = (*_OUTCOMES, *_PLACEMENT, STORE_REQUESTS)
# Processes share some; the compiler's are all among the controller's.
_OF_PROCESSES = (GATEWAY_METRICS, GATEWAY_WORKERS_METRICS, REPLICA_METRICS, CONTROLLER_METRICS)
ALL_METRICS = tuple(dict.fromkeys(chain.from_iterable(_OF_PROCESSES)))
