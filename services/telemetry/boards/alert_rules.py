"""The alerts: what is wrong, for whom, since when, and the command to begin with."""

from services.telemetry import catalog
from services.telemetry.boards import objectives
from services.telemetry.boards.alerts import AlertGroup, critical, warning
from services.telemetry.boards.promql import LACKING, is_, is_not
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


def _ready(**where: str) -> str:
    return FLEET.total(catalog.REPLICAS_ATTACHED, *_PLACE, state=is_("ready"), **where)


def _wanted(*by: str) -> str:
    return FLEET.total(catalog.REPLICAS_WANTED, *by)


def _lacking() -> str:
    """Replicas that are wanted and not ready, where there are such."""
    wanted = _wanted("model", "version")
    ready = FLEET.total(catalog.REPLICAS_ATTACHED, "model", "version", state=is_("ready"))
    return f"{wanted} - ({ready} or 0 * {wanted}) > 0"


REQUEST_ALERTS = (
    critical(
        "SmeltErrorBudgetBurnsFast",
        _burn(objectives.FAST_BURNS),
        f"{_MODEL}: the month's error budget will be gone within days",
        f"{_SHARE} of the requests to {_MODEL} fail by our fault.",
        wait="2m",
    ),
    warning(
        "SmeltErrorBudgetBurnsSlowly",
        _burn(objectives.SLOW_BURNS),
        f"{_MODEL}: errors use up the month's budget before the month ends",
        f"{_SHARE} of the requests to {_MODEL} fail by our fault.",
        wait="15m",
    ),
    warning(
        "SmeltLatencyOverObjective",
        f"{LATENCY_P99.name} > {objectives.LATENCY_P99_S:g}",
        f"{_VERSION} answers slowly",
        (
            "The slowest 1 % of requests take {{ $value | humanizeDuration }} or longer; the "
            f"objective is {objectives.LATENCY_P99_S * 1000:g} ms."
        ),
        wait="10m",
    ),
    warning(
        "SmeltRequestsRefused",
        f"{REFUSED_RATIO.name} > {objectives.REFUSED_SHARE:g}",
        "The fleet refuses requests because it is full",
        f"{_SHARE} of all requests are answered with RESOURCE_EXHAUSTED.",
        wait="5m",
    ),
    warning(
        "SmeltQueueSaturated",
        f"{QUEUE_SATURATION.name} > {objectives.QUEUE_SATURATION:g}",
        f"{_WHERE}: the queue of a replica is nearly full",
        (
            f"{_SHARE} of the queue's bound is in use; beyond it requests are refused. More "
            "replicas (num_replicas in the recipe) or a faster engine are needed."
        ),
        wait="5m",
        runbook=_WHY,
    ),
)

ENGINE_ALERTS = (
    warning(
        "SmeltNoProvenEngine",
        (
            f"({_ready(kind=is_('fallback'), reason=LACKING)} > 0)"
            f" unless ({_ready(kind=is_not('fallback'))} > 0)"
        ),
        f"{_WHERE} serves on the fallback alone",
        (
            "{{ $value }} ready replicas there, and none has a proven engine: none was built, "
            "or none passed its proof. One that was not found faster does not count as that."
        ),
        wait="15m",
        runbook=_WHY,
    ),
    warning(
        "SmeltEngineFailedInService",
        FLEET.grew(catalog.ENGINE_RETURNS, *_PLACE, "kind", window="1h"),
        f"{_WHERE}: a proven {{{{ $labels.kind }}}} engine failed in service",
        (
            "The engine before it serves again. Its proof did not see what made it fail: inputs, "
            "memory or driver."
        ),
        wait="0m",
        runbook=_WHY,
    ),
    warning(
        "SmeltFallbackShareHigh",
        f"{FALLBACK_RATIO.name} > {objectives.FALLBACK_SHARE:g} < 1",
        f"{_WHERE}: some replicas stay on the fallback",
        f"{_SHARE} of the ready replicas serve on it, though others have an engine.",
        wait="30m",
        runbook=_WHY,
    ),
)

_ATTEMPT = (*_PLACE, "kind")
BUILD_ALERTS = (
    warning(
        "SmeltBuildFailing",
        f"{FLEET.total(catalog.BUILD_STATE, *_ATTEMPT, outcome=is_('failed'))} > 0",
        f"{_WHERE}: {{{{ $labels.kind }}}} cannot be built",
        (
            "The newest attempt failed. The build's own words stand in its record; a kind that "
            "cannot build this model is best left out of the recipe."
        ),
        wait="10m",
        runbook=f"{_WHY}; then smelt rebuild {_MODEL} --generation {_GENERATION}",
    ),
    warning(
        "SmeltBuildGivenUp",
        f"{FLEET.total(catalog.KEYS_QUARANTINED, 'model', 'generation')} > 0",
        f"{_MODEL} on {_GENERATION}: {{{{ $value }}}} engines are not tried any more",
        (
            "They failed too often. They are tried again when model, recipe, driver or toolchain "
            "change, or when they are asked for."
        ),
        wait="1m",
        runbook=f"{_WHY}; then smelt rebuild {_MODEL} --generation {_GENERATION}",
    ),
    warning(
        "SmeltBuildWaiting",
        f"{FLEET.total(catalog.BUILDS_WAITING, 'model', 'generation')} > 0",
        f"{_MODEL} on {_GENERATION}: a build has found no place to run",
        (
            "No node has room for it, or its image cannot be pulled. The event build_waiting "
            "says why; no attempt is counted meanwhile."
        ),
        wait="30m",
        runbook=f"smelt events {_MODEL}",
    ),
    warning(
        "SmeltProofFailing",
        (
            f"({FLEET.total(catalog.BUILD_STATE, *_ATTEMPT, outcome=is_('proof_failed'))} > 0)"
            f" or ({FLEET.total(catalog.ENGINES, *_ATTEMPT, outcome=is_('failed'))} > 0)"
        ),
        f"{_WHERE}: {{{{ $labels.kind }}}} was built and is not equal to its reference",
        (
            "No replica will serve with it. The proof names the output, the distance found and "
            "the distance allowed."
        ),
        wait="10m",
        runbook=_WHY,
    ),
)

FLEET_ALERTS = (
    critical(
        "SmeltModelUnserved",
        f"({_wanted('model')} > 0) unless ({FLEET.total(catalog.REPLICAS_READY, 'model')} > 0)",
        f"No gateway has a replica of {_MODEL} to ask",
        "Every request to it is answered with UNAVAILABLE or NOT_FOUND.",
        wait="5m",
    ),
    warning(
        "SmeltReplicasLost",
        _lacking(),
        f"{_VERSION}: {{{{ $value }}}} replicas are missing",
        "They are wanted and not ready: lost, failing to load, or without a node.",
        wait="10m",
        runbook="smelt status; then smelt events",
    ),
    critical(
        "SmeltControllerLost",
        f"min{FLEET.by(())} ({FLEET.series(catalog.CONTROLLER_CONNECTED)}) == 0",
        "A gateway does not hear its controller",
        (
            "It serves on with the last known fleet; new versions, engines and replicas are "
            "not taken up until the controller is back."
        ),
        wait="2m",
    ),
    critical(
        "SmeltGatewayAbsent",
        f"absent({FLEET.series(catalog.CONTROLLER_CONNECTED)})",
        "No gateway is scraped",
        "Either no gateway runs, or Prometheus cannot reach its metrics port.",
        wait="2m",
    ),
    critical(
        "SmeltStoreErrors",
        f"{STORE_ERROR_RATIO.name} > {objectives.STORE_ERROR_SHARE:g}",
        "The artifact store fails",
        (
            f"{_SHARE} of the requests to it fail. Replicas that serve go on; nothing can be "
            "built, published or started anew."
        ),
        wait="5m",
        runbook="smelt engines",
    ),
)

ALERT_GROUPS = (
    AlertGroup(name="smelt-requests", alerts=REQUEST_ALERTS),
    AlertGroup(name="smelt-engines", alerts=ENGINE_ALERTS),
    AlertGroup(name="smelt-builds", alerts=BUILD_ALERTS),
    AlertGroup(name="smelt-fleet", alerts=FLEET_ALERTS),
)
