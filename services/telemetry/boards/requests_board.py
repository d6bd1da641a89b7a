"""The board for whoever is on call: traffic, errors, latency, queues."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.board import BOARD, Board, Panel, Query, Row, Unit, number, one
from services.telemetry.boards.promql import any_of
from services.telemetry.boards.recording_rules import (
    ERROR_RATIOS,
    LATENCY_P99,
    QUEUE_SATURATION,
    REFUSED_RATIO,
)

_VERSION = "{{model}} v{{version}}"
_WHERE = "{{model}} v{{version}} on {{generation}}"


def _quantiles(metric: catalog.Metric) -> tuple[Query, ...]:
    return tuple(
        Query(expr=BOARD.quantile(q, metric, "model", "version"), legend=f"{_VERSION} p{q * 100:g}")
        for q in (0.5, 0.95, 0.99)
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
        Panel(
            title="Requests by model",
            description="Answers per second.",
            unit=Unit.REQUESTS_PER_S,
            queries=one(BOARD.rate(catalog.REQUESTS, "model", "version"), _VERSION),
        ),
        Panel(
            title="Requests by status",
            description="Answers per second by gRPC status; no model: refused before it was read.",
            unit=Unit.REQUESTS_PER_S,
            queries=one(BOARD.rate(catalog.REQUESTS, "code"), "{{code}}"),
        ),
        Panel(
            title="Failed by our fault",
            description="Share of a model's requests; the line is the availability objective.",
            unit=Unit.SHARE,
            queries=one(BOARD.recorded(ERROR_RATIOS["5m"]), "{{model}}"),
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
        Panel(
            title="Refused because full",
            description="Share of all requests that were answered with RESOURCE_EXHAUSTED.",
            unit=Unit.SHARE,
            queries=one(BOARD.recorded(REFUSED_RATIO), "{{namespace}}"),
            limit=objectives.REFUSED_SHARE,
        ),
        Panel(
            title="Sent to a second replica",
            description="Because the first was lost or drained; clients do not notice.",
            unit=Unit.REQUESTS_PER_S,
            queries=one(f"{BOARD.rate(catalog.REQUEST_RETRIES)} or vector(0)", "retries"),
        ),
        Panel(
            title="Response cache",
            description="Requests of models whose recipe allows it: answered from it, or not.",
            unit=Unit.REQUESTS_PER_S,
            queries=tuple(
                Query(expr=f"{BOARD.rate(metric)} or vector(0)", legend=legend)
                for metric, legend in (
                    (catalog.CACHE_HITS, "hits"),
                    (catalog.CACHE_MISSES, "misses"),
                )
            ),
        ),
    ),
)
_LATENCY = Row(
    title="Latency",
    panels=(
        Panel(
            title="From arrival to answer",
            description="As the gateway sees it; the line is the objective for p99.",
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
        Panel(
            title="Slow requests",
            description="Per second, slower than the objective.",
            unit=Unit.REQUESTS_PER_S,
            queries=one(
                f"{BOARD.rate(catalog.REQUEST_DURATION)} - "
                f"{BOARD.bucket_rate(catalog.REQUEST_DURATION, objectives.LATENCY_P99_S)}",
                "slower than the objective",
            ),
        ),
    ),
)
_QUEUES = Row(
    title="Queues and replicas",
    panels=(
        Panel(
            title="Queue in use",
            description="Fullest queue of a model's replicas, as a share of its bound.",
            unit=Unit.SHARE,
            queries=one(BOARD.recorded(QUEUE_SATURATION), _WHERE),
            limit=objectives.QUEUE_SATURATION,
        ),
        Panel(
            title="Waiting requests",
            description="Over all replicas.",
            unit=Unit.COUNT,
            queries=one(
                BOARD.total(catalog.QUEUE_REQUESTS, "model", "version", "generation"), _WHERE
            ),
        ),
        Panel(
            title="Rows in a batch",
            description="Mean over the batches that engines ran.",
            unit=Unit.COUNT,
            queries=one(
                f"{BOARD.rate(catalog.ROWS, 'model', 'version')} / "
                f"{BOARD.rate(catalog.BATCH_SIZE, 'model', 'version')}",
                _VERSION,
            ),
        ),
        Panel(
            title="Requests in flight",
            description="Accepted and not yet answered, over all gateways.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.REQUESTS_IN_FLIGHT, "model", "version"), _VERSION),
        ),
        Panel(
            title="Replicas ready",
            description="As the gateway that knows the most of them sees it.",
            unit=Unit.COUNT,
            queries=one(
                BOARD.largest(catalog.REPLICAS_READY, "model", "version", "generation"), _WHERE
            ),
        ),
        Panel(
            title="Faults by status",
            description="Answers per second that cost error budget.",
            unit=Unit.REQUESTS_PER_S,
            queries=one(
                BOARD.rate(catalog.REQUESTS, "code", code=any_of(objectives.SERVER_FAULTS)),
                "{{code}}",
            ),
        ),
    ),
)

REQUESTS_BOARD = Board(
    uid="smelt-requests",
    title="Smelt: requests",
    description="Traffic, errors against the objective, latency and queues.",
    rows=(_NOW, _TRAFFIC, _LATENCY, _QUEUES),
)
