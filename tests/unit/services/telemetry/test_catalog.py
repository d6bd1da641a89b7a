"""The rules that every metric of the catalogue keeps."""

import re
import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.telemetry.catalog import ALL_METRICS
from services.telemetry.metric import Metric, MetricKind
from services.telemetry.prometheus_recorder import PrometheusRecorder

# Labels multiply: each of these has few values in a fleet (models, versions, generations,
# kinds, precisions, outcomes, codes, reasons, states, operations of a store) or one at a
# time (the digest in use).
BOUNDED_LABELS = {
    "model",
    "version",
    "code",
    "generation",
    "kind",
    "precision",
    "outcome",
    "reason",
    "digest",
    "state",
    "operation",
    "dimension",
}


def record_one(recorder: PrometheusRecorder, metric: Metric) -> None:
    labels = dict.fromkeys(metric.labels, "x")
    match metric.kind:
        case MetricKind.COUNTER:
            recorder.count(metric, **labels)
        case MetricKind.GAUGE:
            recorder.set(metric, 1.0, **labels)
        case MetricKind.HISTOGRAM:
            recorder.observe(metric, 1.0, **labels)


def test_names_are_unique() -> None:
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
class TestEveryMetric:
    def test_name_is_of_smelt_in_plain_characters(self, metric: Metric) -> None:
        assert re.fullmatch(r"smelt_[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
        assert metric.ray_name == f"ray_{metric.name}"

    def test_only_counters_end_with_total(self, metric: Metric) -> None:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)

    def test_unit_is_a_base_unit_and_stands_in_the_name(self, metric: Metric) -> None:
        assert metric.unit in ("", "seconds", "bytes")
        stem = metric.name.removesuffix("_total")
        assert stem.endswith(f"_{metric.unit}") if metric.unit else True
        spelled = re.search(r"_(seconds|bytes|ms|millis|mb|gib)$", stem)
        assert bool(spelled) == bool(metric.unit)

    def test_labels_are_few_and_bounded(self, metric: Metric) -> None:
        assert set(metric.labels) <= BOUNDED_LABELS
        assert len(metric.labels) == len(set(metric.labels)) <= 6

    def test_buckets_rise_and_belong_to_histograms(self, metric: Metric) -> None:
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert all(bound > 0 for bound in metric.buckets)

    def test_help_is_one_sentence(self, metric: Metric) -> None:
        assert metric.help[0].isupper() or metric.help[0].isdigit()
        assert metric.help.endswith(".")


def test_promtool_finds_no_fault_with_any_metric() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(ALL_METRICS, registry)
    for metric in ALL_METRICS:
        record_one(recorder, metric)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
