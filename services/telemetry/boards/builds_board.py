"""The board for builds: what was tried, what was proven, what fails and stays failing."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.board import BOARD, Board, Look, Panel, Row, Unit, one
from services.telemetry.boards.promql import any_of, is_
from services.telemetry.boards.recording_rules import STORE_ERROR_RATIO

_KEY = ("generation", "kind", "precision")
_KIND = "{{kind}} {{precision}} on {{generation}}"
_ATTEMPT = ("model", "version", *_KEY, "outcome")
_FAILED = any_of(("failed", "proof_failed"))

_NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Builds failing",
            description="Combinations whose newest attempt failed or was not equal.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.BUILD_STATE, outcome=_FAILED)),
            look=Look.NUMBERS,
            limit=1,
            width=4,
        ),
        Panel(
            title="Given up",
            description="Planned engines that failed too often; smelt rebuild tries them again.",
            unit=Unit.COUNT,
            queries=one(f"{BOARD.total(catalog.KEYS_QUARANTINED)} or vector(0)"),
            look=Look.NUMBERS,
            limit=1,
            width=4,
        ),
        Panel(
            title="Builds running",
            description="Tasks that were launched and have not ended.",
            unit=Unit.COUNT,
            queries=one(f"{BOARD.total(catalog.BUILDS_RUNNING)} or vector(0)"),
            look=Look.NUMBERS,
            width=4,
        ),
        Panel(
            title="Engines proven",
            description="Published engines of the models' newest versions that may serve.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.ENGINES, outcome=is_("passed"))),
            look=Look.NUMBERS,
            width=4,
        ),
        Panel(
            title="Built, not proven yet",
            description="They wait for a device of their generation.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.ENGINES, outcome=is_("not_run"))),
            look=Look.NUMBERS,
            width=4,
        ),
        Panel(
            title="Store errors",
            description="Share of the requests to the artifact store that fail.",
            unit=Unit.SHARE,
            queries=one(f"max ({BOARD.recorded(STORE_ERROR_RATIO)})"),
            look=Look.NUMBERS,
            limit=objectives.STORE_ERROR_SHARE,
            width=4,
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
    panels=(
        Panel(
            title="Attempts so far",
            description="All that the store remembers, by outcome.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.BUILDS, "outcome"), "{{outcome}}"),
        ),
        Panel(
            title="Attempts in an hour",
            description="By kind and outcome.",
            unit=Unit.COUNT,
            queries=one(
                BOARD.increase(catalog.BUILDS, "kind", "outcome", window="1h"),
                "{{kind}} {{outcome}}",
            ),
        ),
        Panel(
            title="Time of the builder",
            description="Mean over all attempts that the store remembers.",
            unit=Unit.SECONDS,
            queries=one(BOARD.overall_mean(catalog.BUILD_DURATION, *_KEY), _KIND),
        ),
    ),
)
_PROOFS = Row(
    title="Proofs",
    panels=(
        Panel(
            title="Proofs so far",
            description="All that the store remembers; not_run waits for a device.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.PROOFS, "outcome"), "{{outcome}}"),
        ),
        Panel(
            title="Proofs in an hour",
            description="By kind and outcome.",
            unit=Unit.COUNT,
            queries=one(
                BOARD.increase(catalog.PROOFS, "kind", "outcome", window="1h"),
                "{{kind}} {{outcome}}",
            ),
        ),
        Panel(
            title="Time of a proof",
            description="Comparison and benchmark, mean over all that the store remembers.",
            unit=Unit.SECONDS,
            queries=one(BOARD.overall_mean(catalog.PROOF_DURATION, *_KEY), _KIND),
        ),
    ),
)
_STORE = Row(
    title="Artifact store",
    panels=(
        Panel(
            title="Requests",
            description="By controller and replicas.",
            unit=Unit.OPERATIONS_PER_S,
            queries=one(BOARD.rate(catalog.STORE_REQUESTS, "operation"), "{{operation}}"),
            width=12,
        ),
        Panel(
            title="Errors",
            description="Faults of the store; a key that is absent is none.",
            unit=Unit.OPERATIONS_PER_S,
            queries=one(
                BOARD.rate(catalog.STORE_REQUESTS, "operation", outcome=is_("error")),
                "{{operation}}",
            ),
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
