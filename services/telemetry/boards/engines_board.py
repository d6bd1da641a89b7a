"""The board for whoever rolls out: which engine serves where, and why not a better one."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.board import (
    BOARD,
    VARIABLES,
    Board,
    Look,
    Panel,
    Query,
    Row,
    Unit,
    number,
    one,
)
from services.telemetry.boards.promql import Scope, is_, is_not
from services.telemetry.boards.recording_rules import FALLBACK_RATIO

_PLACE = ("model", "version", "generation")
_WHERE = "{{model}} v{{version}} on {{generation}}"
_READY = is_("ready")
_FALLBACK = is_("fallback")
# What is wanted is wanted of a model version, on whatever generation.
_ANYWHERE = Scope(variables=tuple(label for label in VARIABLES if label != "generation"))


def _ready_by(*by: str, **where: str) -> str:
    return BOARD.total(catalog.REPLICAS_ATTACHED, *by, state=_READY, **where)


def _batch_duration(which: str, quantile: float) -> Panel:
    by = ("model", "generation", "kind")
    return Panel(
        title=f"One batch, {which}",
        description="Time of the engine alone.",
        unit=Unit.SECONDS,
        queries=one(
            BOARD.quantile(quantile, catalog.COMPUTE_DURATION, *by),
            "{{model}} {{kind}} on {{generation}}",
        ),
    )


_NOW = Row(
    title="Now",
    panels=(
        number(
            "On the fallback",
            "Share of the ready replicas that serve without a proven engine.",
            f"({_ready_by(kind=_FALLBACK)} or vector(0)) / {_ready_by()}",
            unit=Unit.SHARE,
            limit=objectives.FALLBACK_SHARE,
            width=5,
        ),
        number(
            "Places without a proven engine",
            "Model versions on a generation where every ready replica falls back.",
            f"count (({_ready_by(*_PLACE, kind=_FALLBACK)} > 0) unless "
            f"({_ready_by(*_PLACE, kind=is_not('fallback'))} > 0)) or vector(0)",
            limit=1,
            width=5,
        ),
        number(
            "Waiting for a proven engine",
            "Generations with nodes and no proven engine, counted for each model.",
            f"{BOARD.total(catalog.GENERATIONS_WITHOUT_ENGINE)} or vector(0)",
            limit=1,
            width=5,
        ),
        number(
            "Ready replicas",
            "As the controller knows them.",
            _ready_by(),
            width=5,
        ),
        number(
            "Replicas missing",
            "Wanted and not ready.",
            f"clamp_min({_ANYWHERE.total(catalog.REPLICAS_WANTED)} - "
            f"({_ANYWHERE.total(catalog.REPLICAS_ATTACHED, state=_READY)} or vector(0)), 0)",
            limit=1,
            width=4,
        ),
    ),
)
_IN_USE = Row(
    title="Engines in use",
    panels=(
        Panel(
            title="Replicas by engine",
            description="Which engine serves which model on which generation.",
            unit=Unit.COUNT,
            queries=one(
                f"{BOARD.total(catalog.ENGINE_IN_USE, *_PLACE, 'kind', 'precision', 'digest')} > 0"
            ),
            look=Look.TABLE,
            width=12,
        ),
        Panel(
            title="Ready replicas by kind of engine",
            description="The kind `fallback` is the master, compiled by the replica itself.",
            unit=Unit.COUNT,
            queries=one(_ready_by("kind"), "{{kind}}"),
            width=6,
        ),
        Panel(
            title="Replicas by state",
            description="Loading, ready, draining or failed.",
            unit=Unit.COUNT,
            queries=one(BOARD.total(catalog.REPLICAS_ATTACHED, "state"), "{{state}}"),
            width=6,
        ),
    ),
)
_FALLBACKS = Row(
    title="Fallbacks",
    panels=(
        Panel(
            title="Share on the fallback",
            description="Of the ready replicas of a model version on a generation.",
            unit=Unit.SHARE,
            queries=one(BOARD.recorded(FALLBACK_RATIO), _WHERE),
            limit=objectives.FALLBACK_SHARE,
            width=6,
        ),
        Panel(
            title="Why the fallback was chosen",
            description="Choices by reason since the replicas started.",
            unit=Unit.COUNT,
            queries=one(
                BOARD.total(catalog.FALLBACKS, "model", "generation", "reason"),
                "{{model}} on {{generation}}: {{reason}}",
            ),
            width=6,
        ),
        Panel(
            title="Engines that failed in service",
            description="Since the replicas started; the engine before each served again.",
            unit=Unit.COUNT,
            queries=one(f"{BOARD.total(catalog.ENGINE_RETURNS)} or vector(0)", "failed"),
            width=6,
        ),
        Panel(
            title="Wanted and ready",
            description="Replicas of each model version.",
            unit=Unit.COUNT,
            queries=(
                Query(
                    expr=BOARD.total(catalog.REPLICAS_WANTED, "model", "version"),
                    legend="{{model}} v{{version}} wanted",
                ),
                Query(expr=_ready_by("model", "version"), legend="{{model}} v{{version}} ready"),
            ),
            width=6,
        ),
    ),
)
_SPEED = Row(
    title="Speed",
    panels=(
        _batch_duration("median", 0.5),
        _batch_duration("slowest 1 %", 0.99),
        Panel(
            title="Batches",
            description="Runs of engines per second.",
            unit=Unit.OPERATIONS_PER_S,
            queries=one(BOARD.rate(catalog.COMPUTE_DURATION, "kind", "generation"),
                        "{{kind}} on {{generation}}"),
        ),
        Panel(
            title="Engines working",
            description="Share of a replica's time that its engine runs, mean over replicas.",
            unit=Unit.SHARE,
            queries=one(
                f"{BOARD.mean_rate(catalog.ENGINE_BUSY, *_PLACE)}", _WHERE,
            ),
        ),
        Panel(
            title="Loading an engine",
            description="Median time to verify, load and warm it, since the replicas started.",
            unit=Unit.SECONDS,
            queries=one(BOARD.overall_quantile(0.5, catalog.ENGINE_LOAD_DURATION, "model", "kind"),
                        "{{model}} {{kind}}"),
        ),
        Panel(
            title="Engines loaded",
            description="Loads and swaps since the replicas started.",
            unit=Unit.COUNT,
            queries=one(BOARD.observations(catalog.ENGINE_LOAD_DURATION, "model", "kind"),
                        "{{model}} {{kind}}"),
        ),
    ),
)  # fmt: skip

ENGINES_BOARD = Board(
    uid="smelt-engines",
    title="Smelt: engines and fallbacks",
    description="Which engine serves where, how fast it is, and why not a better one.",
    rows=(_NOW, _IN_USE, _FALLBACKS, _SPEED),
)
