"""Every metric of Smelt, as data; nothing else names one.

Names are `smelt_<noun>_<unit>[_total]`. Ray exports what a replica records as
`ray_<name>`; `Metric.ray_name` (`metric.py`) owns that spelling. Times are seconds, sizes bytes.
"""

from itertools import chain

from services.telemetry import buckets
from services.telemetry.metric import counter as _counter
from services.telemetry.metric import gauge as _gauge
from services.telemetry.metric import histogram as _histogram

_PLACE = ("model", "version", "generation")
_KIND = (*_PLACE, "kind")
_BUILT = ("generation", "kind", "precision")

REQUESTS = _counter(
    "smelt_requests_total",
    "Requests answered by the gateway, by gRPC status code.",
    ("model", "version", "code"),
)
REQUEST_DURATION = _histogram(
    "smelt_request_duration_seconds",
    "Time from a request's arrival at the gateway to its answer, by gRPC status code.",
    ("model", "version", "code"),
    buckets.INFERENCE_BUCKETS_S,
)
GATEWAY_DURATION = _histogram(
    "smelt_gateway_duration_seconds",
    "Time of a request in the gateway itself: all but the waiting for replicas.",
    ("model", "version", "code"),
    buckets.STAGE_BUCKETS_S,
)
REPLICA_DURATION = _histogram(
    "smelt_replica_duration_seconds",
    "Time from sending a request to a replica to its answer, as the gateway sees it.",
    _KIND,
    buckets.INFERENCE_BUCKETS_S,
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
    "Capacity of that shared memory; large requests beyond it are copied to replicas.",
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
    "Requests that wait in the gateway for a replica, as the last one of their version was lost, "
    "or for room, as another part of the client's request had it.",
    ("model", "version"),
)
HELD_DURATION = _histogram(
    "smelt_request_held_duration_seconds",
    "How long requests waited for a replica or room, by what became of them: sent, refused, "
    "expired or cancelled.",
    ("model", "version", "outcome"),
    buckets.BUILD_BUCKETS_S,
)
ON_DEMAND_MISSES = _counter(
    "smelt_on_demand_misses_total",
    "Requests that found no replica of their on-demand model, and had it loaded.",
    ("model", "version"),
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
    "Requests that their clients cancelled, by whether a replica had them: unsent or unanswered.",
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
    "smelt_replicas_ready", "Replicas that the gateway may send requests to.", _PLACE
)
REPLICA_EJECTIONS = _counter(
    "smelt_replica_ejections_total",
    "Ejections of replicas that failed as outliers, by reason.",
    ("model", "version", "generation", "reason"),
)
CONTROLLER_CONNECTED = _gauge(
    "smelt_controller_connected",
    "1 while the gateway is connected to its controller; else it keeps the last known fleet.",
)
ACCESS_LOG_DROPPED = _counter(
    "smelt_access_log_dropped_total",
    "Lines of the access log that were dropped, as writing was too slow.",
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
    buckets.BATCH_BUCKETS,
    unit="",
)
ROWS = _counter(
    "smelt_rows_total", "Rows that engines ran; requests bring one or more.", ("model", "version")
)
REQUEST_SIZE = _histogram(
    "smelt_request_size",
    "Size of each dynamic dimension of the requests that engines ran.",
    ("model", "version", "dimension"),
    buckets.SIZE_BUCKETS,
    unit="",
)
REAL_ELEMENTS = _counter(
    "smelt_real_elements_total",
    "Elements of the requests that engines ran: the product of their dynamic dimensions.",
    ("model", "version"),
)
PADDED_ELEMENTS = _counter(
    "smelt_padded_elements_total",
    "Elements of padding that engines computed.",
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
    _KIND,
    buckets.INFERENCE_BUCKETS_S,
)
FORMING_DURATION = _histogram(
    "smelt_batch_forming_duration_seconds",
    "Time from when the engine is free and a request waits to the start of the batch.",
    _KIND,
    buckets.STAGE_BUCKETS_S,
)
PAD_DURATION = _histogram(
    "smelt_pad_duration_seconds",
    "Time to join the inputs of a batch, padding included.",
    _KIND,
    buckets.STAGE_BUCKETS_S,
)
REPLY_DURATION = _histogram(
    "smelt_reply_duration_seconds",
    "Time to split the outputs of a batch and to write its answers.",
    _KIND,
    buckets.STAGE_BUCKETS_S,
)
QUEUE_REQUESTS = _gauge("smelt_queue_requests", "Requests that wait in a replica now.", _PLACE)
QUEUE_USED = _gauge(
    "smelt_queue_used_ratio",
    "Share of the fullest bound of a replica's queue that is taken; at 1 it refuses requests.",
    _PLACE,
)
COMPUTE_DURATION = _histogram(
    "smelt_compute_duration_seconds",
    "Time an engine took for one batch.",
    _KIND,
    buckets.INFERENCE_BUCKETS_S,
)
ENGINE_BUSY = _counter(
    "smelt_engine_busy_seconds_total", "Time for which an engine ran.", _KIND, unit="seconds"
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
    "Times ONNX Runtime replaced torch.compile as its outputs were wrong, by the check.",
    ("model", "version", "generation", "reason"),
)
ENGINE_RETURNS = _counter(
    "smelt_engine_returns_total",
    "Rollbacks to the engine before, after an engine failed in service.",
    _KIND,
)
ENGINE_LOAD_DURATION = _histogram(
    "smelt_engine_load_duration_seconds",
    "Time to verify, load and warm an engine in a replica.",
    ("model", "version", "kind"),
    buckets.BUILD_BUCKETS_S,
)
BUILDS = _counter(
    "smelt_builds_total",
    "Builds that ended, by outcome.",
    ("generation", "kind", "precision", "outcome"),
)
BUILD_DURATION = _histogram(
    "smelt_build_duration_seconds", "Build time without proof.", _BUILT, buckets.BUILD_BUCKETS_S
)
PROOFS = _counter(
    "smelt_proofs_total",
    "Proofs that ended, by outcome.",
    ("generation", "kind", "precision", "outcome"),
)
PROOF_DURATION = _histogram(
    "smelt_proof_duration_seconds",
    "Time to compare and measure one engine.",
    _BUILT,
    buckets.BUILD_BUCKETS_S,
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
    "smelt_models_unplaced", "1 while replicas are unschedulable.", ("model", "version")
)
ON_DEMAND_LOAD_DURATION = _histogram(
    "smelt_on_demand_load_duration_seconds",
    "Time to deploy an on-demand model, by what became of it: ready, failed or withdrawn.",
    ("model", "version", "outcome"),
    buckets.BUILD_BUCKETS_S,
)
ON_DEMAND_EVICTIONS = _counter(
    "smelt_on_demand_evictions_total",
    "Evictions of on-demand models.",
    ("model", "version"),
)
CONTROLLER_BUILDS = _gauge(
    "smelt_controller_builds",
    "1 while this controller builds for its store; 0 while another one does and this is standby.",
)
BUILDS_RUNNING = _gauge(
    "smelt_builds_running",
    "Build tasks that were launched and have not ended.",
    ("model", "generation"),
)
BUILDS_WAITING = _gauge(
    "smelt_builds_waiting",
    "Build tasks that run nowhere yet: no node has capacity, or their image cannot be pulled.",
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
_HELD = (REQUESTS_HELD, HELD_DURATION, ON_DEMAND_MISSES)
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
# compilers that run for seconds are not lost.
_COMPILERS = (BUILDS, BUILD_DURATION, PROOFS, PROOF_DURATION)
_BUILD_TASKS = (CONTROLLER_BUILDS, BUILDS_RUNNING, BUILDS_WAITING)
BUILD_LOOP_METRICS = (*_BUILD_TASKS, KEYS_QUARANTINED, GENERATIONS_WITHOUT_ENGINE)
_OUTCOMES = (*_COMPILERS, *BUILD_LOOP_METRICS, BUILD_STATE, ENGINES)
_PLACEMENT = (REPLICAS_WANTED, REPLICAS_ATTACHED, MODELS_UNPLACED)
_ON_DEMAND = (ON_DEMAND_LOAD_DURATION, ON_DEMAND_EVICTIONS)
CONTROLLER_METRICS = (*_OUTCOMES, *_PLACEMENT, *_ON_DEMAND, STORE_REQUESTS)
# Processes share some.
_OF_PROCESSES = (GATEWAY_METRICS, GATEWAY_WORKERS_METRICS, REPLICA_METRICS, CONTROLLER_METRICS)
ALL_METRICS = tuple(dict.fromkeys(chain.from_iterable(_OF_PROCESSES)))
