"""Queries against the catalogue: how they are filtered, and what is refused."""

import pytest

from services.contracts.errors import SmeltError
from services.telemetry import catalog
from services.telemetry.boards.selectors import exported_name, filtered
from services.telemetry.metric import Metric

VARIABLES = ("namespace", "model", "generation")


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


NAMESPACE, MODEL, GENERATION = ALL = tuple(f'{each}=~"${each}"' for each in VARIABLES)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (
            "sum by (version) (smelt_replicas_wanted)",
            f"sum by (version) (smelt_replicas_wanted{{{NAMESPACE}, {MODEL}}})",
        ),
        (
            'smelt_builds_total{outcome!="proven"}',
            f'smelt_builds_total{{{NAMESPACE}, {GENERATION}, outcome!="proven"}}',
        ),
        (
            '{__name__=~"(ray_)?smelt_store_requests_total", outcome="error"}',
            f'{{__name__=~"(ray_)?smelt_store_requests_total", {NAMESPACE}, outcome="error"}}',
        ),
        (
            "sum by (le) (ray_smelt_compute_duration_seconds_bucket)",
            f"sum by (le) (ray_smelt_compute_duration_seconds_bucket{{{', '.join(ALL)}}})",
        ),
        (
            "model:smelt_request_errors:ratio_rate5m > 1",
            f"model:smelt_request_errors:ratio_rate5m{{{NAMESPACE}, {MODEL}}} > 1",
        ),
        (
            'smelt_replicas_attached{generation=~".*"}',
            f'smelt_replicas_attached{{{NAMESPACE}, {MODEL}, generation=~".*"}}',
        ),
        (
            '{__name__=~"smelt_replicas_wanted|smelt_engines"}',
            f'{{__name__=~"smelt_replicas_wanted|smelt_engines", {NAMESPACE}, {MODEL}}}',
        ),
    ],
)
def test_each_series_is_filtered_by_the_variables_that_it_has(query: str, shown: str) -> None:
    assert filtered(query, VARIABLES) == shown
    assert filtered(query) == query


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sum (smelt_request_total)", "no process exports 'smelt_request_total'"),
        ("smelt_fallbacks_total", "no process exports 'smelt_fallbacks_total'; .* begin with ray_"),
        ("sum by (generation) (smelt_requests_total)", "there is no label generation; expected"),
        ('smelt_replicas_ready{kind="fallback"}', "there is no label kind; expected one of gen"),
        ("sum by (le) (smelt_requests_total)", "there is no label le"),
        (
            'smelt_request_duration_seconds_bucket{le="0.5"}',
            "0.5 is no bucket bound of smelt_request_duration_seconds_bucket; expected one of",
        ),
    ],
)
def test_what_nobody_records_is_refused(query: str, words: str) -> None:
    with pytest.raises(SmeltError, match=words):
        filtered(query)


def test_a_bound_of_a_bucket_is_none_of_that() -> None:
    filtered('smelt_request_duration_seconds_bucket{le="0.512"}')
