"""The board for whoever is on call: traffic, errors, latency, queues."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.batches_row import BATCHES
from services.telemetry.boards.board import BOARD, Board, Panel, Query, Row, Unit, line, number
from services.telemetry.boards.promql import any_of
from services.telemetry.boards.recording_rules import (
    ERROR_RATIOS,
    LATENCY_P99,
    QUEUE_SATURATION,
    REFUSED_RATIO,
)
from services.telemetry.metric import Metric

_VERSION = "{{model}} v{{version}}"
_WHERE = "{{model}} v{{version}} on {{generation}}"


_EXEMPLARS_AT = 0.99


def _quantiles(metric: Metric) -> tuple[Query, ...]:
    return tuple(
        Query(
            expr=BOARD.quantile(q, metric, "model", "version"),
            legend=f"{_VERSION} p{q * 100:g}",
            # One of the three is enough, and only the gateway knows traces.
            has_exemplars=q == _EXEMPLARS_AT and metric is catalog.REQUEST_DURATION,
        )
        for q in (0.5, 0.95, 0.99)
    )


def _rates(metrics: dict[str, Metric]) -> tuple[Query, ...]:
    """Rates of what may never have happened, by legend."""
    return tuple(
        Query(expr=f"{BOARD.rate(metric)} or vector(0)", legend=legend)
        for legend, metric in metrics.items()
    )


_NOW = Row(
    title="Now",
    panels=(
        number(
            "Requests",
            "Answers per second, refusals and errors included.",
            BOARD.rate(catalog.REQUESTS),
            unit=Unit.REQUESTS_PER_S,
            width=4,
        ),
        number(
            "Failed by our fault",
            "Largest share over the models, last five minutes.",
            f"max ({BOARD.recorded(ERROR_RATIOS['5m'])})",
            unit=Unit.SHARE,
            limit=objectives.ERROR_BUDGET,
            width=5,
        ),
        number(
            "Slowest 1 %",
            "Largest p99 over the model versions, last five minutes.",
            f"max ({BOARD.recorded(LATENCY_P99)})",
            unit=Unit.SECONDS,
            limit=objectives.LATENCY_P99_S,
            width=5,
        ),
        number(
            "In flight",
            "Requests accepted and not yet answered.",
            BOARD.total(catalog.REQUESTS_IN_FLIGHT),
            width=5,
        ),
        number(
            "Replicas ready",
            "Replicas that gateways may ask.",
            f"sum ({BOARD.largest(catalog.REPLICAS_READY, 'model', 'version', 'generation')})",
            width=5,
        ),
    ),
)
_TRAFFIC = Row(
    title="Traffic and errors",
    panels=(
        line(
            "Requests by model",
            "Answers per second.",
            BOARD.rate(catalog.REQUESTS, "model", "version"),
            _VERSION,
            unit=Unit.REQUESTS_PER_S,
        ),
        line(
            "Requests by status",
            "Answers per second by gRPC status; no model: refused before it was read.",
            BOARD.rate(catalog.REQUESTS, "code"),
            "{{code}}",
            unit=Unit.REQUESTS_PER_S,
        ),
        line(
            "Failed by our fault",
            "Share of a model's requests; the line is the availability objective.",
            BOARD.recorded(ERROR_RATIOS["5m"]),
            "{{model}}",
            unit=Unit.SHARE,
            limit=objectives.ERROR_BUDGET,
        ),
        Panel(
            title="Error budget burn",
            description="1 uses up the budget in just a month; alerts begin at 6 and at 14.4.",
            unit=Unit.COUNT,
            queries=tuple(
                Query(
                    expr=f"{BOARD.recorded(ERROR_RATIOS[w])} / {objectives.ERROR_BUDGET:.3g}",
                    legend=f"{{{{model}}}} over {w}",
                )
                for w in ("1h", "6h", "3d")
            ),
            limit=objectives.FAST_BURNS[1][2],
        ),
        line(
            "Refused because full",
            "Share of all requests that were answered with RESOURCE_EXHAUSTED.",
            BOARD.recorded(REFUSED_RATIO),
            "{{namespace}}",
            unit=Unit.SHARE,
            limit=objectives.REFUSED_SHARE,
        ),
        line(
            "Sent to a second replica",
            "Because the first was lost or drained; clients do not notice.",
            f"{BOARD.rate(catalog.REQUEST_RETRIES)} or vector(0)",
            "retries",
            unit=Unit.REQUESTS_PER_S,
        ),
        Panel(
            title="Not answered",
            description="Refused at a bound, too late for their deadline, given up by the client.",
            unit=Unit.REQUESTS_PER_S,
            queries=_rates(
                {
                    "refused": catalog.REQUESTS_REJECTED,
                    "too late": catalog.REQUESTS_EXPIRED,
                    "given up": catalog.REQUESTS_CANCELLED,
                }
            ),
        ),
        line(
            "Replicas left out",
            "Times a gateway stopped asking a replica for a while, in an hour.",
            f"{BOARD.increase(catalog.REPLICA_EJECTIONS, window='1h')} or vector(0)",
            "left out",
            unit=Unit.COUNT,
        ),
        Panel(
            title="Response cache",
            description="Requests of models whose recipe allows it: answered from it, or not.",
            unit=Unit.REQUESTS_PER_S,
            queries=_rates({"hits": catalog.CACHE_HITS, "misses": catalog.CACHE_MISSES}),
        ),
    ),
)
_LATENCY = Row(
    title="Latency",
    panels=(
        Panel(
            title="From arrival to answer",
            description="As the gateway sees it; the line is p99's objective, dots are traces.",
            unit=Unit.SECONDS,
            queries=_quantiles(catalog.REQUEST_DURATION),
            limit=objectives.LATENCY_P99_S,
        ),
        Panel(
            title="Waiting in the replica",
            description="From a request's arrival in the replica to the start of its batch.",
            unit=Unit.SECONDS,
            queries=_quantiles(catalog.QUEUE_DURATION),
        ),
        line(
            "Slow requests",
            "Per second, slower than the objective.",
            f"{BOARD.rate(catalog.REQUEST_DURATION)} - "
            f"{BOARD.bucket_rate(catalog.REQUEST_DURATION, objectives.LATENCY_P99_S)}",
            "slower than the objective",
            unit=Unit.REQUESTS_PER_S,
        ),
    ),
)
# In the order of a request's way; by the gateway and by the replica's own clock.
_STAGES = {
    "gateway": catalog.GATEWAY_DURATION,
    "queue": catalog.QUEUE_DURATION,
    "batch forming": catalog.FORMING_DURATION,
    "pad": catalog.PAD_DURATION,
    "compute": catalog.COMPUTE_DURATION,
    "reply": catalog.REPLY_DURATION,
}
_STAGE_ROW = Row(
    title="Stages",
    panels=(
        Panel(
            title="Time by stage",
            description="Means: gateway and queue of a request, the others of a batch.",
            unit=Unit.SECONDS,
            queries=tuple(
                Query(expr=BOARD.mean(metric), legend=stage) for stage, metric in _STAGES.items()
            ),
        ),
        Panel(
            title="Slowest 1 % by stage",
            description="Quantiles do not add up: a request is seldom slow in all of them.",
            unit=Unit.SECONDS,
            queries=tuple(
                Query(expr=BOARD.quantile(0.99, metric), legend=f"{stage} p99")
                for stage, metric in _STAGES.items()
            ),
        ),
        line(
            "Replicas as gateways see them",
            "p99 from sending a request to its answer, by the engine that answers.",
            BOARD.quantile(0.99, catalog.REPLICA_DURATION, "model", "generation", "kind"),
            "{{model}} {{kind}} on {{generation}}",
            unit=Unit.SECONDS,
        ),
    ),
)
_QUEUES = Row(
    title="Queues and replicas",
    panels=(
        line(
            "Queue in use",
            "Fullest queue of a model's replicas, as a share of what may wait in it.",
            BOARD.recorded(QUEUE_SATURATION),
            _WHERE,
            unit=Unit.SHARE,
            limit=objectives.QUEUE_SATURATION,
        ),
        line(
            "Waiting requests",
            "Over all replicas.",
            BOARD.total(catalog.QUEUE_REQUESTS, "model", "version", "generation"),
            _WHERE,
            unit=Unit.COUNT,
        ),
        line(
            "Rows in a batch",
            "Mean over the batches that engines ran.",
            f"{BOARD.rate(catalog.ROWS, 'model', 'version')} / "
            f"{BOARD.rate(catalog.BATCH_SIZE, 'model', 'version')}",
            _VERSION,
            unit=Unit.COUNT,
        ),
        line(
            "Requests in flight",
            "Accepted and not yet answered, over all gateways.",
            BOARD.total(catalog.REQUESTS_IN_FLIGHT, "model", "version"),
            _VERSION,
            unit=Unit.COUNT,
        ),
        Panel(
            title="Connections",
            description="Clients that are connected, and how many a second were ended because they "
            "send what asks for nothing (flood), break the protocol, read no answers or are too "
            "many.",
            unit=Unit.COUNT,
            queries=(
                Query(expr=BOARD.total(catalog.CONNECTIONS), legend="connected"),
                Query(
                    expr=BOARD.rate(
                        catalog.CONNECTIONS_ENDED,
                        "reason",
                        reason=any_of(("flood", "protocol", "unread", "limit")),
                    ),
                    legend="ended: {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Memory of large requests",
            description="What they occupy that a gateway's replicas read where it lies, and how "
            "much there is; beyond it they are copied.",
            unit=Unit.BYTES,
            queries=(
                Query(expr=BOARD.total(catalog.REQUEST_MEMORY), legend="in use"),
                Query(expr=BOARD.total(catalog.REQUEST_MEMORY_LIMIT), legend="all there is"),
            ),
        ),
        line(
            "Replicas ready",
            "As the gateway that knows the most of them sees it.",
            BOARD.largest(catalog.REPLICAS_READY, "model", "version", "generation"),
            _WHERE,
            unit=Unit.COUNT,
        ),
        line(
            "Faults by status",
            "Answers per second that cost error budget.",
            BOARD.rate(catalog.REQUESTS, "code", code=any_of(objectives.SERVER_FAULTS)),
            "{{code}}",
            unit=Unit.REQUESTS_PER_S,
        ),
        line(
            "Access log lines lost",
            "The disk did not keep up with them; requests are not held up.",
            f"{BOARD.rate(catalog.ACCESS_LOG_DROPPED)} or vector(0)",
            "lost",
            unit=Unit.OPERATIONS_PER_S,
        ),
        line(
            "Gateway processes",
            "Workers that serve now, of gateways that have several on a port; else the gateways.",
            f"{BOARD.total(catalog.WORKERS_SERVING)} "
            f"or count({BOARD.series(catalog.CONTROLLER_CONNECTED)})",
            "serving",
            unit=Unit.COUNT,
        ),
        line(
            "Gateway workers started again",
            "They died; each takes the requests that it had with it.",
            f"{BOARD.rate(catalog.WORKER_RESTARTS)} or vector(0)",
            "started again",
            unit=Unit.OPERATIONS_PER_S,
        ),
    ),
)

REQUESTS_BOARD = Board(
    uid="smelt-requests",
    title="Smelt: requests",
    description="Traffic, errors against the objective, latency and queues.",
    rows=(_NOW, _TRAFFIC, _LATENCY, _STAGE_ROW, BATCHES, _QUEUES),
)
