"""The alerts: what is wrong, for whom, since when, and the command to begin with."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.alerts import Alert, AlertGroup, Severity
from services.telemetry.boards.promql import is_, is_not
from services.telemetry.boards.recording_rules import (
    ERROR_RATIOS,
    FALLBACK_RATIO,
    FLEET,
    LATENCY_P99,
    QUEUE_SATURATION,
    REFUSED_RATIO,
    STORE_ERROR_RATIO,
)

_MODEL = "{{ $labels.model }}"
_VERSION = f"{_MODEL} version {{{{ $labels.version }}}}"
_GENERATION = "{{ $labels.generation }}"
_WHERE = f"{_VERSION} on {_GENERATION}"
_WHY = f"smelt why {_MODEL} --generation {_GENERATION}"
_SHARE = "{{ $value | humanizePercentage }}"
_PLACE = ("model", "version", "generation")


def _burn(burns: tuple[tuple[str, str, float], ...]) -> str:
    """Whether a long window and its short one both burn the budget too fast."""
    pairs = (
        f"({ERROR_RATIOS[long].name} > {factor:g} * {objectives.ERROR_BUDGET:.3g}"
        f" and {ERROR_RATIOS[short].name} > {factor:g} * {objectives.ERROR_BUDGET:.3g})"
        for long, short, factor in burns
    )
    return " or ".join(pairs)


def _ready(kind: str) -> str:
    return FLEET.total(catalog.REPLICAS_ATTACHED, *_PLACE, state=is_("ready"), kind=kind)


def _wanted(*by: str) -> str:
    return FLEET.total(catalog.REPLICAS_WANTED, *by)


def _lacking() -> str:
    """Replicas that are wanted and not ready, where there are such."""
    wanted = _wanted("model", "version")
    ready = FLEET.total(catalog.REPLICAS_ATTACHED, "model", "version", state=is_("ready"))
    return f"{wanted} - ({ready} or 0 * {wanted}) > 0"


REQUEST_ALERTS = (
    Alert(
        name="SmeltErrorBudgetBurnsFast",
        expr=_burn(objectives.FAST_BURNS),
        wait="2m",
        severity=Severity.CRITICAL,
        summary=f"{_MODEL}: the month's error budget will be gone within days",
        description=f"{_SHARE} of the requests to {_MODEL} fail by our fault.",
        runbook="smelt status",
    ),
    Alert(
        name="SmeltErrorBudgetBurnsSlowly",
        expr=_burn(objectives.SLOW_BURNS),
        wait="15m",
        severity=Severity.WARNING,
        summary=f"{_MODEL}: errors use up the month's budget before the month ends",
        description=f"{_SHARE} of the requests to {_MODEL} fail by our fault.",
        runbook="smelt status",
    ),
    Alert(
        name="SmeltLatencyOverObjective",
        expr=f"{LATENCY_P99.name} > {objectives.LATENCY_P99_S:g}",
        wait="10m",
        severity=Severity.WARNING,
        summary=f"{_VERSION} answers slowly",
        description=(
            "The slowest 1 % of requests take {{ $value | humanizeDuration }} or longer; the "
            f"objective is {objectives.LATENCY_P99_S * 1000:g} ms."
        ),
        runbook="smelt status",
    ),
    Alert(
        name="SmeltRequestsRefused",
        expr=f"{REFUSED_RATIO.name} > {objectives.REFUSED_SHARE:g}",
        wait="5m",
        severity=Severity.WARNING,
        summary="The fleet refuses requests because it is full",
        description=f"{_SHARE} of all requests are answered with RESOURCE_EXHAUSTED.",
        runbook="smelt status",
    ),
    Alert(
        name="SmeltQueueSaturated",
        expr=f"{QUEUE_SATURATION.name} > {objectives.QUEUE_SATURATION:g}",
        wait="5m",
        severity=Severity.WARNING,
        summary=f"{_WHERE}: the queue of a replica is nearly full",
        description=(
            f"{_SHARE} of the queue's bound is in use; beyond it requests are refused. More "
            "replicas (num_replicas in the recipe) or a faster engine are needed."
        ),
        runbook=_WHY,
    ),
)

ENGINE_ALERTS = (
    Alert(
        name="SmeltNoProvenEngine",
        expr=f"({_ready(is_('fallback'))} > 0) unless ({_ready(is_not('fallback'))} > 0)",
        wait="15m",
        severity=Severity.WARNING,
        summary=f"{_WHERE} serves on the fallback alone",
        description=(
            "{{ $value }} ready replicas there, and none has a proven engine: none was built, "
            "or none passed its proof."
        ),
        runbook=_WHY,
    ),
    Alert(
        name="SmeltEngineFailedInService",
        expr=FLEET.grew(catalog.ENGINE_RETURNS, *_PLACE, "kind", window="1h"),
        wait="0m",
        severity=Severity.WARNING,
        summary=f"{_WHERE}: a proven {{{{ $labels.kind }}}} engine failed in service",
        description=(
            "The engine before it serves again. Its proof did not see what made it fail: inputs, "
            "memory or driver."
        ),
        runbook=_WHY,
    ),
    Alert(
        name="SmeltFallbackShareHigh",
        expr=f"{FALLBACK_RATIO.name} > {objectives.FALLBACK_SHARE:g} < 1",
        wait="30m",
        severity=Severity.WARNING,
        summary=f"{_WHERE}: some replicas stay on the fallback",
        description=f"{_SHARE} of the ready replicas serve on it, though others have an engine.",
        runbook=_WHY,
    ),
)

_ATTEMPT = (*_PLACE, "kind")
BUILD_ALERTS = (
    Alert(
        name="SmeltBuildFailing",
        expr=f"{FLEET.total(catalog.BUILD_STATE, *_ATTEMPT, outcome=is_('failed'))} > 0",
        wait="10m",
        severity=Severity.WARNING,
        summary=f"{_WHERE}: {{{{ $labels.kind }}}} cannot be built",
        description=(
            "The newest attempt failed. The build's own words stand in its record; a kind that "
            "cannot build this model is best left out of the recipe."
        ),
        runbook=f"{_WHY}; then smelt rebuild {_MODEL} --generation {_GENERATION}",
    ),
    Alert(
        name="SmeltBuildGivenUp",
        expr=f"{FLEET.total(catalog.KEYS_QUARANTINED, 'model', 'generation')} > 0",
        wait="1m",
        severity=Severity.WARNING,
        summary=f"{_MODEL} on {_GENERATION}: {{{{ $value }}}} engines are not tried any more",
        description=(
            "They failed too often. They are tried again when model, recipe, driver or toolchain "
            "change, or when they are asked for."
        ),
        runbook=f"{_WHY}; then smelt rebuild {_MODEL} --generation {_GENERATION}",
    ),
    Alert(
        name="SmeltBuildWaiting",
        expr=f"{FLEET.total(catalog.BUILDS_WAITING, 'model', 'generation')} > 0",
        wait="30m",
        severity=Severity.WARNING,
        summary=f"{_MODEL} on {_GENERATION}: a build has found no place to run",
        description=(
            "No node has room for it, or its image cannot be pulled. The event build_waiting "
            "says why; no attempt is counted meanwhile."
        ),
        runbook=f"smelt events {_MODEL}",
    ),
    Alert(
        name="SmeltProofFailing",
        expr=(
            f"({FLEET.total(catalog.BUILD_STATE, *_ATTEMPT, outcome=is_('proof_failed'))} > 0)"
            f" or ({FLEET.total(catalog.ENGINES, *_ATTEMPT, outcome=is_('failed'))} > 0)"
        ),
        wait="10m",
        severity=Severity.WARNING,
        summary=f"{_WHERE}: {{{{ $labels.kind }}}} was built and is not equal to its reference",
        description=(
            "No replica will serve with it. The proof names the output, the distance found and "
            "the distance allowed."
        ),
        runbook=_WHY,
    ),
)

FLEET_ALERTS = (
    Alert(
        name="SmeltModelUnserved",
        expr=(
            f"({_wanted('model')} > 0) unless ({FLEET.total(catalog.REPLICAS_READY, 'model')} > 0)"
        ),
        wait="5m",
        severity=Severity.CRITICAL,
        summary=f"No gateway has a replica of {_MODEL} to ask",
        description="Every request to it is answered with UNAVAILABLE or NOT_FOUND.",
        runbook="smelt status",
    ),
    Alert(
        name="SmeltReplicasLost",
        expr=_lacking(),
        wait="10m",
        severity=Severity.WARNING,
        summary=f"{_VERSION}: {{{{ $value }}}} replicas are missing",
        description="They are wanted and not ready: lost, failing to load, or without a node.",
        runbook="smelt status; then smelt events",
    ),
    Alert(
        name="SmeltControllerLost",
        expr=f"min{FLEET.by(())} ({FLEET.series(catalog.CONTROLLER_CONNECTED)}) == 0",
        wait="2m",
        severity=Severity.CRITICAL,
        summary="A gateway does not hear its controller",
        description=(
            "It serves on with the last known fleet; new versions, engines and replicas are "
            "not taken up until the controller is back."
        ),
        runbook="smelt status",
    ),
    Alert(
        name="SmeltGatewayAbsent",
        expr=f"absent({FLEET.series(catalog.CONTROLLER_CONNECTED)})",
        wait="2m",
        severity=Severity.CRITICAL,
        summary="No gateway is scraped",
        description="Either no gateway runs, or Prometheus cannot reach its metrics port.",
        runbook="smelt status",
    ),
    Alert(
        name="SmeltStoreErrors",
        expr=f"{STORE_ERROR_RATIO.name} > {objectives.STORE_ERROR_SHARE:g}",
        wait="5m",
        severity=Severity.CRITICAL,
        summary="The artifact store fails",
        description=(
            f"{_SHARE} of the requests to it fail. Replicas that serve go on; nothing can be "
            "built, published or started anew."
        ),
        runbook="smelt engines",
    ),
)

ALERT_GROUPS = (
    AlertGroup(name="smelt-requests", alerts=REQUEST_ALERTS),
    AlertGroup(name="smelt-engines", alerts=ENGINE_ALERTS),
    AlertGroup(name="smelt-builds", alerts=BUILD_ALERTS),
    AlertGroup(name="smelt-fleet", alerts=FLEET_ALERTS),
)
