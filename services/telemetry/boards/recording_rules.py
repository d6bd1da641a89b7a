"""Recording rules: ratios and quantiles that alerts and boards share."""

from services.telemetry import catalog
from services.telemetry.boards.objectives import FAST_BURNS, SERVER_FAULTS, SLOW_BURNS
from services.telemetry.boards.promql import (
    LACKING,
    NAMESPACE,
    RecordingRule,
    Scope,
    any_of,
    is_,
    is_not,
)

# The same series in every namespace must not be taken for one.
FLEET = Scope(keeps=(NAMESPACE,), window="5m")


def _ratio(part: str, whole: str) -> str:
    """Share of a part that may have no series; 0 then, and nothing without the whole."""
    return f"({part} or 0 * {whole}) / {whole}"


def _error_ratio(window: str) -> RecordingRule:
    # What was refused before its model was read has no model; another alert tells of it.
    faults, known = any_of(SERVER_FAULTS), is_not("")
    requests = catalog.REQUESTS
    return RecordingRule(
        name=f"model:smelt_request_errors:ratio_rate{window}",
        expr=_ratio(
            FLEET.rate(requests, "model", window=window, model=known, code=faults),
            FLEET.rate(requests, "model", window=window, model=known),
        ),
        labels=(NAMESPACE, "model"),
    )


_WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
assert {w for burn in FAST_BURNS + SLOW_BURNS for w in burn[:2]} <= set(_WINDOWS)
ERROR_RATIOS = {window: _error_ratio(window) for window in _WINDOWS}

REFUSED_RATIO = RecordingRule(
    name="namespace:smelt_requests_refused:ratio_rate5m",
    expr=_ratio(
        FLEET.rate(catalog.REQUESTS, code=is_("RESOURCE_EXHAUSTED")), FLEET.rate(catalog.REQUESTS)
    ),
    labels=(NAMESPACE,),
)
LATENCY_P99 = RecordingRule(
    name="version:smelt_request_duration_seconds:p99_5m",
    expr=FLEET.quantile(0.99, catalog.REQUEST_DURATION, "model", "version"),
    labels=(NAMESPACE, "model", "version"),
)
QUEUE_SATURATION = RecordingRule(
    name="generation:smelt_queue:saturation",
    expr=f"max{FLEET.by(catalog.QUEUE_USED.labels)} ({FLEET.series(catalog.QUEUE_USED)})",
    labels=(NAMESPACE, *catalog.QUEUE_USED.labels),
)
_PLACE = ("model", "version", "generation")
FALLBACK_RATIO = RecordingRule(
    name="generation:smelt_replicas_on_fallback:ratio",
    expr=_ratio(
        FLEET.total(
            catalog.REPLICAS_ATTACHED,
            *_PLACE,
            state=is_("ready"),
            kind=is_("fallback"),
            reason=LACKING,
        ),
        FLEET.total(catalog.REPLICAS_ATTACHED, *_PLACE, state=is_("ready")),
    ),
    labels=(NAMESPACE, *_PLACE),
)
STORE_ERROR_RATIO = RecordingRule(
    name="namespace:smelt_store_errors:ratio_rate5m",
    expr=_ratio(
        FLEET.rate(catalog.STORE_REQUESTS, outcome=is_("error")),
        FLEET.rate(catalog.STORE_REQUESTS),
    ),
    labels=(NAMESPACE,),
)

RECORDING_RULES = (
    *ERROR_RATIOS.values(), REFUSED_RATIO, LATENCY_P99, QUEUE_SATURATION,
    FALLBACK_RATIO, STORE_ERROR_RATIO,
)  # fmt: skip
