"""What a real Prometheus answers after real traffic: every figure that the catalogue promises."""

import re
import time
from typing import TYPE_CHECKING, Any

from services.telemetry import catalog
from services.telemetry.boards.selectors import exported_name
from services.telemetry.metric import Metric
from tests.integration.fleet.conftest import OLD_GENERATION
from tests.integration.fleet.prometheus.server import check_metrics, page_of, wait_until
from tests.integration.fleet.prometheus.traffic import BATCH, NUM_ASKED, QUIET, WATCHED

if TYPE_CHECKING:
    from tests.integration.fleet.prometheus.conftest import Watched

COUNTED = 'model="counted", version="1"'


def test_requests_by_model_version_and_code(watched: "Watched") -> None:
    name = catalog.REQUESTS.name
    found = watched.prometheus.wait_for(
        f"sum by (model, version, code) ({name}{{{QUIET}}})", lambda rows: len(rows) >= 3
    )
    values = {(row["model"], row["version"], row["code"]): v for row, v in found}
    assert values == {
        ("counted", "1", "OK"): NUM_ASKED,
        ("counted", "1", "INVALID_ARGUMENT"): 1,
        ("bare", "1", "OK"): NUM_ASKED,
    }
    # A name that clients made up is no label: it would let them fill the memory.
    unknown = watched.prometheus.wait_for(f'sum by (model) ({name}{{code="NOT_FOUND"}})')
    assert [row for row, _ in unknown] == [{}]


def test_latency_quantile(watched: "Watched") -> None:
    name = catalog.REQUEST_DURATION.name
    expression = f"histogram_quantile(0.99, sum by (le, model) ({name}_bucket{{{COUNTED}}}))"
    ((labels, p99_s),) = watched.prometheus.wait_for(expression)
    assert labels == {"model": "counted"}
    assert 0 < p99_s <= catalog.REQUEST_DURATION.buckets[-1]


def test_a_slow_request_can_be_looked_up(watched: "Watched") -> None:
    """By the id of its trace, which stands beside the histogram."""
    query = f'{catalog.REQUEST_DURATION.name}_bucket{{model="busy"}}'
    day = {"start": str(time.time() - 3600), "end": str(time.time() + 3600)}
    found = wait_until(
        lambda: watched.prometheus.get("/api/v1/query_exemplars", query=query, **day),
        bool,
        "exemplars",
    )
    traces = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
    assert traces
    assert all(re.fullmatch("[0-9a-f]{32}", trace) for trace in traces)


def test_batches_and_their_rows(watched: "Watched") -> None:
    rows, batches = catalog.ROWS.ray_name, f"{catalog.BATCH_SIZE.ray_name}_count"
    asked = {"model": "counted"}, float(BATCH * NUM_ASKED)
    watched.prometheus.wait_for(f"sum by (model) ({rows}{{{COUNTED}}})", lambda r: r == [asked])
    # Each is published in its own time: the one may be scraped before the other.
    mean = f"sum({rows}{{{COUNTED}}}) / sum({batches}{{{COUNTED}}})"
    watched.prometheus.wait_for(mean, lambda r: r == [({}, float(BATCH))])


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
    found = watched.prometheus.wait_for(f"{name}{{{QUIET}}} == 1", lambda rows: len(rows) == 2)
    # Prometheus leaves out labels that are empty.
    in_use = {r["model"]: (r["generation"], r["kind"], r.get("digest", "")) for r, _ in found}
    assert in_use == {
        "counted": (watched.generation, "onnxruntime", watched.engine_digest),
        "bare": (watched.generation, "fallback", ""),
    }


def test_a_load_of_an_on_demand_model(watched: "Watched") -> None:
    name = f"{catalog.ON_DEMAND_LOAD_DURATION.name}_count"
    found = watched.prometheus.wait_for(f"sum by (model, outcome) ({name})")
    assert found == [({"model": "busy", "outcome": "ready"}, 1.0)]


def test_fallbacks_by_reason(watched: "Watched") -> None:
    name = catalog.FALLBACKS.ray_name
    found = watched.prometheus.wait_for(f"sum by (model, reason) ({name}{{{QUIET}}})")
    assert found == [({"model": "bare", "reason": "no_engine"}, 1.0)]


def test_builds_and_proofs_by_outcome(watched: "Watched") -> None:
    """Of compilers that were gone before anybody scraped: the controller reads the store."""
    here, there = (watched.generation, "onnxruntime"), (OLD_GENERATION, "tensorrt")
    masters = watched.fleet.smelt("engines")["masters"]
    proven = sum(is_proven(engine) for master in masters for engine in master["engines"])
    assert proven >= len(("linear", "noop", "counted", "busy"))
    builds = counts(watched, catalog.BUILDS)
    # The controller may try again what failed for a generation that is here.
    assert builds.pop((*here, "fp32", "proof_failed")) >= 1
    assert builds == {
        (*here, "fp32", "proven"): proven,
        (*there, "fp32", "failed"): 1,
        (*there, "fp16", "built"): 1,
    }
    proofs = counts(watched, catalog.PROOFS)
    assert proofs.pop((*here, "fp32", "failed")) >= 1
    assert proofs == {(*here, "fp32", "passed"): proven, (*there, "fp16", "not_run"): 1}


def is_proven(engine: dict[str, Any]) -> bool:
    proof, key = engine["proof"], engine["manifest"]["key"]
    return bool(proof) and proof["outcome"] == "passed" and key["kind"] == "onnxruntime"


def counts(watched: "Watched", metric: Metric) -> dict[tuple[str, ...], float]:
    """What was counted, by the metric's labels in their order; without what is 0."""
    by = ", ".join(metric.labels)
    found = watched.prometheus.wait_for(
        f'sum by ({by}) ({metric.name}{{kind=~"onnxruntime|tensorrt"}}) > 0'
    )
    return {tuple(row[label] for label in metric.labels): value for row, value in found}


def test_replicas_attached_and_wanted(watched: "Watched") -> None:
    found = watched.prometheus.wait_for(f"{catalog.REPLICAS_ATTACHED.name}{{{WATCHED}}} > 0")
    kinds = {row["model"]: (row["state"], row["generation"], row["kind"]) for row, _ in found}
    ready = ("ready", watched.generation)
    assert kinds == {
        "counted": (*ready, "onnxruntime"),
        "bare": (*ready, "fallback"),
        "busy": (*ready, "onnxruntime"),
    }
    wanted = watched.prometheus.wait_for(f"{catalog.REPLICAS_WANTED.name}{{{WATCHED}}}")
    assert {row["model"]: value for row, value in wanted} == dict.fromkeys(kinds, 1.0)


def test_the_store_is_asked_without_errors(watched: "Watched") -> None:
    name = exported_name(catalog.STORE_REQUESTS)
    everywhere = f'{{__name__=~"{name}", outcome="ok"}}'
    jobs = watched.prometheus.wait_for(
        f"sum by (job) ({everywhere}) > 0", lambda rows: len(rows) == 2
    )
    assert {row["job"] for row, _ in jobs} == {"controller", "replicas"}
    ((_, errors),) = watched.prometheus.query(f'sum ({{__name__=~"{name}", outcome="error"}})')
    assert errors == 0


def test_replicas_ready(watched: "Watched") -> None:
    found = watched.prometheus.wait_for(f"{catalog.REPLICAS_READY.name}{{{WATCHED}}}")
    assert {(r["model"], r["generation"]): v for r, v in found if v} == {
        ("counted", watched.generation): 1,
        ("bare", watched.generation): 1,
        ("busy", watched.generation): 1,
    }


def test_every_target_is_up_and_no_sample_was_refused(watched: "Watched") -> None:
    found = watched.prometheus.wait_for("up", lambda rows: len(rows) == 3)
    assert {(row["job"], row["namespace"]): value for row, value in found} == {
        ("gateway", "local"): 1,
        ("controller", "local"): 1,
        ("replicas", "local"): 1,
    }
    targets = watched.prometheus.get("/api/v1/targets")["activeTargets"]
    assert [target["lastError"] for target in targets] == ["", "", ""]


def test_only_our_own_series_are_kept(watched: "Watched") -> None:
    """An agent of Ray exports hundreds more, which would fill the disk of a workstation."""
    names = watched.prometheus.get(
        "/api/v1/label/__name__/values", **{"match[]": '{job="replicas"}'}
    )
    known = {"up", *(name for name in names if name.startswith(("ray_smelt_", "scrape_")))}
    assert set(names) == known


def test_promtool_finds_no_fault_with_our_metrics(watched: "Watched") -> None:
    for process in ("metrics_address", "controller_metrics_address"):
        checked = check_metrics(page_of(watched.fleet.running[process]))
        assert checked.returncode == 0, checked.stdout + checked.stderr
    for address in watched.agents:
        # The rest of the page is Ray's own; and so are the labels in camel case that it adds.
        lines = [line for line in page_of(address).splitlines() if "ray_smelt_" in line]
        complaints = check_metrics("\n".join(lines) + "\n").stderr.splitlines()
        assert lines
        # Nor is what Ray calls a gauge a histogram, whatever Prometheus makes of its name.
        ours = [text for text in complaints if "'camelCase'" not in text]
        assert [text for text in ours if " non-histogram " not in text] == []
