"""Queries from catalogue objects: their text, and what cannot be written."""

import pytest

from services.contracts.errors import SmeltError
from services.telemetry import catalog
from services.telemetry.boards.promql import (
    RecordingRule,
    Scope,
    any_of,
    exported_name,
    is_,
    is_not,
)
from services.telemetry.metric import Metric

FLEET = Scope(keeps=("namespace",), window="5m")
BOARD = Scope(variables=("namespace", "model", "generation"))


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (catalog.REQUESTS, "smelt_requests_total"),
        (catalog.ENGINE_IN_USE, "ray_smelt_engine_in_use"),
        (catalog.BUILDS, "smelt_builds_total"),
        (catalog.STORE_REQUESTS, "(ray_)?smelt_store_requests_total"),
    ],
)
def test_a_name_is_spelled_as_its_recorder_exports_it(metric: Metric, name: str) -> None:
    assert exported_name(metric) == name


def test_rates_keep_what_the_scope_keeps() -> None:
    assert FLEET.rate(catalog.REQUESTS, "model", code=any_of(("INTERNAL", "UNKNOWN"))) == (
        'sum by (namespace, model) (rate(smelt_requests_total{code=~"INTERNAL|UNKNOWN"}[5m]))'
    )


def test_a_board_filters_by_the_variables_that_the_metric_has() -> None:
    assert BOARD.total(catalog.REPLICAS_WANTED, "version") == (
        'sum by (version) (smelt_replicas_wanted{namespace=~"$namespace", model=~"$model"})'
    )
    assert BOARD.series(catalog.BUILDS, outcome=is_not("proven")) == (
        'smelt_builds_total{namespace=~"$namespace", generation=~"$generation", outcome!="proven"}'
    )


def test_two_exporters_of_one_metric_are_asked_together() -> None:
    assert FLEET.series(catalog.STORE_REQUESTS, outcome=is_("error")) == (
        '{__name__=~"(ray_)?smelt_store_requests_total", outcome="error"}'
    )


def test_quantiles_and_means_of_histograms() -> None:
    assert FLEET.quantile(0.99, catalog.QUEUE_DURATION, "model") == (
        "histogram_quantile(0.99, sum by (namespace, le, model) "
        "(rate(ray_smelt_queue_duration_seconds_bucket[5m])))"
    )
    assert Scope().overall_quantile(0.5, catalog.ENGINE_LOAD_DURATION, "kind") == (
        "histogram_quantile(0.5, sum by (le, kind) (ray_smelt_engine_load_duration_seconds_bucket))"
    )
    assert Scope().overall_mean(catalog.PROOF_DURATION, "kind") == (
        "sum by (kind) (smelt_proof_duration_seconds_sum)"
        " / sum by (kind) (smelt_proof_duration_seconds_count)"
    )
    assert FLEET.mean(catalog.PAD_DURATION, "model") == (
        "sum by (namespace, model) (rate(ray_smelt_pad_duration_seconds_sum[5m]))"
        " / sum by (namespace, model) (rate(ray_smelt_pad_duration_seconds_count[5m]))"
    )


def test_growth_counts_a_series_that_was_not_there_before() -> None:
    name = "ray_smelt_engine_returns_total"
    assert Scope().grew(catalog.ENGINE_RETURNS, "kind", window="1h") == (
        f"(sum by (kind) (increase({name}[1h])) > 0) or "
        f"(sum by (kind) ({name}) unless sum by (kind) ({name} offset 1h))"
    )


def test_a_recorded_series_is_filtered_by_its_own_labels() -> None:
    rule = RecordingRule(name="model:x:y", expr="1", labels=("namespace", "model"))
    assert BOARD.recorded(rule) == 'model:x:y{namespace=~"$namespace", model=~"$model"}'


def test_a_choice_of_series_is_filtered_by_what_all_of_them_have() -> None:
    found = BOARD.any_series((catalog.REPLICAS_WANTED, catalog.ENGINES))
    assert found == (
        '{__name__=~"smelt_replicas_wanted|smelt_engines", '
        'namespace=~"$namespace", model=~"$model"}'
    )


def test_a_label_that_the_metric_lacks_is_refused() -> None:
    with pytest.raises(SmeltError, match="'smelt_requests_total': it has no label generation"):
        FLEET.rate(catalog.REQUESTS, "generation")
    with pytest.raises(SmeltError, match="it has no label kind; it has generation"):
        FLEET.series(catalog.REPLICAS_READY, kind=is_("fallback"))
    with pytest.raises(SmeltError, match="it has no label le"):
        FLEET.total(catalog.REQUESTS, "le")


def test_a_bound_that_is_no_bucket_is_refused() -> None:
    assert 'le="0.512"' in FLEET.bucket_rate(catalog.REQUEST_DURATION, 0.512)
    with pytest.raises(SmeltError, match="0.5 is none of its bucket bounds"):
        FLEET.bucket_rate(catalog.REQUEST_DURATION, 0.5)
