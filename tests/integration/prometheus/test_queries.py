"""What a real Prometheus answers after real traffic: every figure that the catalogue promises."""

from typing import TYPE_CHECKING

import pytest

from services.telemetry import catalog
from tests.integration.prometheus.conftest import BATCH, NUM_ASKED
from tests.integration.prometheus.server import check_metrics, page_of

if TYPE_CHECKING:
    from tests.integration.prometheus.conftest import Watched

COUNTED = 'model="counted", version="1"'


def test_requests_by_model_version_and_code(watched: "Watched") -> None:
    name = catalog.REQUESTS.name
    found = watched.prometheus.wait_for(
        f"sum by (model, version, code) ({name})", lambda rows: len(rows) >= 4
    )
    values = {(row.get("model", ""), row.get("version", ""), row["code"]): v for row, v in found}
    assert values == {
        ("counted", "1", "OK"): NUM_ASKED,
        ("counted", "1", "INVALID_ARGUMENT"): 1,
        ("bare", "1", "OK"): NUM_ASKED,
        # A name that clients made up is no label: it would let them fill the memory.
        ("", "", "NOT_FOUND"): 1,
    }


def test_latency_quantile(watched: "Watched") -> None:
    name = catalog.REQUEST_DURATION.name
    expression = f"histogram_quantile(0.99, sum by (le, model) ({name}_bucket{{{COUNTED}}}))"
    ((labels, p99_s),) = watched.prometheus.wait_for(expression)
    assert labels == {"model": "counted"}
    assert 0 < p99_s <= catalog.REQUEST_DURATION.buckets[-1]


def test_batch_size(watched: "Watched") -> None:
    name = catalog.BATCH_SIZE.ray_name
    rows = watched.prometheus.wait_for(
        f"sum ({name}_sum{{{COUNTED}}})", lambda found: found and found[0][1] >= BATCH * NUM_ASKED
    )
    assert rows[0][1] == BATCH * NUM_ASKED
    ((_, mean),) = watched.prometheus.query(f"sum({name}_sum) / sum({name}_count)")
    assert mean == BATCH


def test_queue_time(watched: "Watched") -> None:
    name = catalog.QUEUE_DURATION.ray_name
    watched.prometheus.wait_for(
        f"sum ({name}_count{{{COUNTED}}})", lambda found: found and found[0][1] == NUM_ASKED
    )
    ((_, p50_s),) = watched.prometheus.query(
        f"histogram_quantile(0.5, sum by (le) ({name}_bucket{{{COUNTED}}}))"
    )
    assert p50_s > 0


def test_engine_in_use(watched: "Watched") -> None:
    name = catalog.ENGINE_IN_USE.ray_name
    found = watched.prometheus.wait_for(f"{name} == 1", lambda rows: len(rows) == 2)
    # Prometheus leaves out labels that are empty.
    in_use = {r["model"]: (r["generation"], r["kind"], r.get("digest", "")) for r, _ in found}
    assert in_use == {
        "counted": (watched.generation, "onnxruntime", watched.engine_digest),
        "bare": (watched.generation, "fallback", ""),
    }


def test_fallbacks_by_reason(watched: "Watched") -> None:
    name = catalog.FALLBACKS.ray_name
    found = watched.prometheus.wait_for(f"sum by (model, reason) ({name})")
    assert found == [({"model": "bare", "reason": "no_engine"}, 1.0)]


@pytest.mark.parametrize(
    ("metric", "wanted"),
    [
        (catalog.BUILDS, {("onnxruntime", "proven"), ("tensorrt", "failed")}),
        (catalog.PROOFS, {("onnxruntime", "passed")}),
    ],
    ids=["builds", "proofs"],
)
def test_builds_and_proofs_by_outcome(
    watched: "Watched", metric: catalog.Metric, wanted: set[tuple[str, str]]
) -> None:
    """Over time, because the compiler is gone by now; its last build may not have been seen."""
    found = watched.prometheus.query(f"max_over_time({metric.name}[10m])")
    assert {value for _, value in found} == {1.0}
    assert {(row["kind"], row["outcome"]) for row, _ in found} >= wanted


def test_replicas_ready(watched: "Watched") -> None:
    found = watched.prometheus.wait_for(catalog.REPLICAS_READY.name)
    assert {(r["model"], r["generation"]): v for r, v in found if v} == {
        ("counted", watched.generation): 1,
        ("bare", watched.generation): 1,
    }


def test_every_target_is_up_and_no_sample_was_refused(watched: "Watched") -> None:
    found = watched.prometheus.wait_for("up")
    ups = {row["job"]: value for row, value in found}
    assert (ups["gateway"], ups["replicas"]) == (1, 1)
    targets = watched.prometheus.get("/api/v1/targets")["data"]["activeTargets"]
    errors = {t["labels"]["job"]: t["lastError"] for t in targets if t["labels"]["job"] in
              ("gateway", "replicas")}  # fmt: skip
    assert errors == {"gateway": "", "replicas": ""}


def test_promtool_finds_no_fault_with_our_metrics(watched: "Watched") -> None:
    gateway = check_metrics(page_of(watched.fleet.running["metrics_address"]))
    assert gateway.returncode == 0, gateway.stdout + gateway.stderr
    for address in watched.agents:
        # The rest of the page is Ray's own; and so are the labels in camel case that it adds.
        lines = [line for line in page_of(address).splitlines() if "ray_smelt_" in line]
        complaints = check_metrics("\n".join(lines) + "\n").stderr.splitlines()
        assert lines
        assert [text for text in complaints if "'camelCase'" not in text] == []
