"""What batching does: how much is padding, how large requests are, what waited in vain."""

from services.telemetry import catalog
from services.telemetry.boards.board import BOARD, Row, Unit, line

_PADDED = BOARD.rate(catalog.PADDED_ELEMENTS, "model", "version")
_REAL = BOARD.rate(catalog.REAL_ELEMENTS, "model", "version")
BATCHES = Row(
    title="Batches",
    panels=(
        line(
            "Padding",
            "Elements computed beside those of requests, as a share of these; buckets cure it.",
            f"({_PADDED} or 0 * {_REAL}) / {_REAL}",
            "{{model}} v{{version}}",
            unit=Unit.SHARE,
        ),
        line(
            "Size of requests",
            "95 % are no larger, by dynamic dimension; smelt buckets advises from these.",
            BOARD.quantile(0.95, catalog.REQUEST_SIZE, "model", "dimension"),
            "{{model}} {{dimension}}",
            unit=Unit.COUNT,
        ),
        line(
            "In vain",
            "Refused, expired or cancelled in a queue, or discarded when they were computed.",
            f"{BOARD.rate(catalog.QUEUE_DROPPED, 'reason')} or vector(0)",
            "{{reason}}",
            unit=Unit.REQUESTS_PER_S,
        ),
    ),
)
