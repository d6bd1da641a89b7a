"""The board for builds: what was tried, what was proven, what fails and stays failing."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.board import (
    BOARD,
    Board,
    Look,
    Panel,
    Row,
    Unit,
    line,
    number,
    one,
)
from services.telemetry.boards.promql import any_of, is_
from services.telemetry.boards.recording_rules import STORE_ERROR_RATIO
from services.telemetry.metric import Metric

_KEY = ("generation", "kind", "precision")
_KIND = "{{kind}} {{precision}} on {{generation}}"
_ATTEMPT = ("model", "version", *_KEY, "outcome")
_FAILED = any_of(("failed", "proof_failed"))


def _attempts(what: str, ended: Metric, duration: Panel, *, note: str) -> tuple[Panel, ...]:
    """How many there were, how many there are in an hour, and how long one takes."""
    so_far = line(
        f"{what} so far",
        "All that the store remembers; since the controller started where that is more than a "
        f"thousand; {note}.",
        BOARD.total(ended, "outcome"),
        "{{outcome}}",
        unit=Unit.COUNT,
    )
    in_an_hour = line(
        f"{what} in an hour",
        "By kind and outcome.",
        BOARD.increase(ended, "kind", "outcome", window="1h"),
        "{{kind}} {{outcome}}",
        unit=Unit.COUNT,
    )
    return so_far, in_an_hour, duration


_NOW = Row(
    title="Now",
    panels=(
        number(
            "Builds failing",
            "Combinations whose newest attempt failed or was not equal.",
            BOARD.total(catalog.BUILD_STATE, outcome=_FAILED),
            limit=1,
            width=3,
        ),
        number(
            "Given up",
            "Planned engines that failed too often; smelt rebuild tries them again.",
            f"{BOARD.total(catalog.KEYS_QUARANTINED)} or vector(0)",
            limit=1,
            width=3,
        ),
        number(
            "Builds running",
            "Tasks that were launched and have not ended.",
            f"{BOARD.total(catalog.BUILDS_RUNNING)} or vector(0)",
            width=3,
        ),
        number(
            "Builds waiting",
            "Of these, tasks that have found no place to run; smelt events says why.",
            f"{BOARD.total(catalog.BUILDS_WAITING)} or vector(0)",
            width=3,
        ),
        number(
            "Engines proven",
            "Published engines of the models' newest versions that may serve.",
            BOARD.total(catalog.ENGINES, outcome=is_("passed")),
            width=3,
        ),
        number(
            "Built, not proven yet",
            "They wait for a device of their generation.",
            BOARD.total(catalog.ENGINES, outcome=is_("not_run")),
            width=3,
        ),
        number(
            "Store errors",
            "Share of the requests to the artifact store that fail.",
            f"max ({BOARD.recorded(STORE_ERROR_RATIO)})",
            unit=Unit.SHARE,
            limit=objectives.STORE_ERROR_SHARE,
            width=6,
        ),
    ),
)
_STATE = Row(
    title="State",
    panels=(
        Panel(
            title="Newest attempt",
            description="By model, generation, kind and precision.",
            unit=Unit.COUNT,
            queries=one(f"{BOARD.total(catalog.BUILD_STATE, *_ATTEMPT)} > 0"),
            look=Look.TABLE,
            width=12,
        ),
        Panel(
            title="Published engines",
            description="By the outcome of their newest proof.",
            unit=Unit.COUNT,
            queries=one(f"{BOARD.total(catalog.ENGINES, *catalog.ENGINES.labels)} > 0"),
            look=Look.TABLE,
            width=12,
        ),
    ),
)
_BUILDS = Row(
    title="Builds",
    panels=_attempts(
        "Attempts",
        catalog.BUILDS,
        line(
            "Time of the builder",
            "Mean over all attempts that were counted.",
            BOARD.overall_mean(catalog.BUILD_DURATION, *_KEY),
            _KIND,
            unit=Unit.SECONDS,
        ),
        note="by outcome",
    ),
)
_PROOFS = Row(
    title="Proofs",
    panels=_attempts(
        "Proofs",
        catalog.PROOFS,
        line(
            "Time of a proof",
            "Comparison and benchmark, mean over all that were counted.",
            BOARD.overall_mean(catalog.PROOF_DURATION, *_KEY),
            _KIND,
            unit=Unit.SECONDS,
        ),
        note="not_run waits for a device",
    ),
)
_STORE = Row(
    title="Artifact store",
    panels=(
        line(
            "Requests",
            "By controller and replicas.",
            BOARD.rate(catalog.STORE_REQUESTS, "operation"),
            "{{operation}}",
            unit=Unit.OPERATIONS_PER_S,
            width=12,
        ),
        line(
            "Errors",
            "Faults of the store; a key that is absent is none.",
            BOARD.rate(catalog.STORE_REQUESTS, "operation", outcome=is_("error")),
            "{{operation}}",
            unit=Unit.OPERATIONS_PER_S,
            width=12,
        ),
    ),
)

BUILDS_BOARD = Board(
    uid="smelt-builds",
    title="Smelt: builds and proofs",
    description="What was built and proven, what fails, and the store that holds it all.",
    rows=(_NOW, _STATE, _BUILDS, _PROOFS, _STORE),
)
