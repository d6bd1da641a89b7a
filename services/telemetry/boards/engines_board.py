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
    line,
    number,
    one,
)
from services.telemetry.boards.promql import LACKING, Scope, is_, is_not
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
    return line(
        f"One batch, {which}",
        "Time of the engine alone.",
        BOARD.quantile(quantile, catalog.COMPUTE_DURATION, *by),
        "{{model}} {{kind}} on {{generation}}",
        unit=Unit.SECONDS,
    )


_NOW = Row(
    title="Now",
    panels=(
        number(
            "On the fallback",
            "Share of the ready replicas that lack a proven engine; a faster fallback lacks none.",
            f"({_ready_by(kind=_FALLBACK, reason=LACKING)} or vector(0)) / {_ready_by()}",
            unit=Unit.SHARE,
            limit=objectives.FALLBACK_SHARE,
            width=5,
        ),
        number(
            "Places without a proven engine",
            "Model versions on a generation where every ready replica falls back for want of one.",
            f"count (({_ready_by(*_PLACE, kind=_FALLBACK, reason=LACKING)} > 0) unless "
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
        line(
            "Ready replicas by kind of engine",
            "The kind `fallback` is the master, compiled by the replica itself.",
            _ready_by("kind"),
            "{{kind}}",
            unit=Unit.COUNT,
            width=6,
        ),
        line(
            "Replicas by state",
            "Loading, ready, draining or failed.",
            BOARD.total(catalog.REPLICAS_ATTACHED, "state"),
            "{{state}}",
            unit=Unit.COUNT,
            width=6,
        ),
    ),
)
_FALLBACKS = Row(
    title="Fallbacks",
    panels=(
        line(
            "Share on the fallback",
            "Of the ready replicas of a version there; a faster fallback is none.",
            BOARD.recorded(FALLBACK_RATIO),
            _WHERE,
            unit=Unit.SHARE,
            limit=objectives.FALLBACK_SHARE,
            width=6,
        ),
        line(
            "Why the fallback was chosen",
            "Choices by reason since the replicas started.",
            BOARD.total(catalog.FALLBACKS, "model", "generation", "reason"),
            "{{model}} on {{generation}}: {{reason}}",
            unit=Unit.COUNT,
            width=6,
        ),
        line(
            "Fallbacks that answer wrong",
            "ONNX Runtime serves in place of torch.compile; choices since the replicas started.",
            f"{BOARD.total(catalog.FALLBACKS_REFUTED)} or vector(0)",
            "refuted",
            unit=Unit.COUNT,
            width=6,
        ),
        line(
            "Engines that failed in service",
            "Since the replicas started; the engine before each served again.",
            f"{BOARD.total(catalog.ENGINE_RETURNS)} or vector(0)",
            "failed",
            unit=Unit.COUNT,
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
                Query(
                    expr=BOARD.total(catalog.MODELS_UNPLACED, "model", "version"),
                    legend="{{model}} v{{version}} has no node with room",
                ),
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
        line(
            "Batches",
            "Runs of engines per second.",
            BOARD.rate(catalog.COMPUTE_DURATION, "kind", "generation"),
            "{{kind}} on {{generation}}",
            unit=Unit.OPERATIONS_PER_S,
        ),
        line(
            "Engines working",
            "Share of a replica's time that its engine runs, mean over replicas.",
            f"{BOARD.mean_rate(catalog.ENGINE_BUSY, *_PLACE)}",
            _WHERE,
            unit=Unit.SHARE,
        ),
        line(
            "Loading an engine",
            "Median time to verify, load and warm it, since the replicas started.",
            BOARD.overall_quantile(0.5, catalog.ENGINE_LOAD_DURATION, "model", "kind"),
            "{{model}} {{kind}}",
            unit=Unit.SECONDS,
        ),
        line(
            "Engines loaded",
            "Loads and swaps since the replicas started.",
            BOARD.observations(catalog.ENGINE_LOAD_DURATION, "model", "kind"),
            "{{model}} {{kind}}",
            unit=Unit.COUNT,
        ),
    ),
)

ENGINES_BOARD = Board(
    uid="smelt-engines",
    title="Smelt: engines and fallbacks",
    description="Which engine serves where, how fast it is, and why not a better one.",
    rows=(_NOW, _IN_USE, _FALLBACKS, _SPEED),
)
