"""`smelt buckets`: sizes from metrics pages, arithmetic of the advice, and what is printed."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.sizes.buckets import advice_document
from services.cli.sizes.observed_sizes import observed_sizes, sizes_from_pages
from services.contracts.errors import NotFoundError, NotReadyError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import ProofOutcome, Timing
from services.contracts.model.recipe import Bucket, DimRange, InputRecipe, InputRole, Recipe
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.contracts.terms import proof_terms
from services.contracts.traffic.sampled_rows import SampledRow
from services.telemetry import catalog
from services.telemetry.prometheus_recorder import PrometheusRecorder
from tests.documents import small_key, small_manifest, small_proof
from tests.unit.services.controller import build_world as world

LABELS = {"model": "m", "version": "1"}
# Most are short, few are long, and the one bucket holds them all.
SEEN = [5] * 60 + [30] * 30 + [120] * 9 + [500]
# Of one request after the other.
ROWS = [1, 1, 1, 4]
NAMES = ("ids", "mask")
DEVICE = DeviceFacts(generation="cpu-x86_64-v3", name="CPU", memory_gib=1)
BUCKET = Bucket(
    dims={"batch": DimRange(min=1, opt=8, max=32), "sequence": DimRange(min=1, opt=64, max=512)}
)


def _registry() -> CollectorRegistry:
    """What replicas of m and of another model counted."""
    made = CollectorRegistry()
    recorder = PrometheusRecorder(catalog.REPLICA_METRICS, made)
    for model, version, sizes in (("m", "1", SEEN), ("other", "1", [7, 9]), ("other", "2", [7, 9])):
        for number, size in enumerate(sizes):
            for dim, each in (("sequence", size), ("batch", ROWS[number % len(ROWS)])):
                recorder.observe(
                    catalog.REQUEST_SIZE, each, model=model, version=version, dimension=dim
                )
    recorder.observe(catalog.REQUEST_SIZE, 2, model="batch-only", version="1", dimension="batch")
    for rows in ROWS:
        recorder.observe(catalog.BATCH_SIZE, rows, **LABELS)
    recorder.count(catalog.REAL_ELEMENTS, sum(SEEN), **LABELS)
    recorder.count(catalog.PADDED_ELEMENTS, sum(SEEN) / 4, **LABELS)
    return made


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """`host:port` of a metrics endpoint."""
    server, thread = start_http_server(0, "127.0.0.1", _registry())
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_of_something_else_is_told() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html>\xff")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(NotReadyError, match="Prometheus' text format.*doctype.*--metrics"):
            observed_sizes([f"127.0.0.1:{server.server_port}"], "m", 1)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with model m and that bucket."""
    url = str(tmp_path / "store")
    registry = Registry(open_store(url), tmp_path / "cache")
    registry.add_model_version(
        name="m",
        master=world.MASTER,
        recipe=Recipe(buckets=(BUCKET,)),
        source="s",
        source_fingerprint="0",
    )
    return url


def _run(*words: str) -> str:
    result = CliRunner().invoke(app, ["buckets", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("prefix", ["", "ray_"])
def test_pages_of_all_replicas_are_added_up(prefix: str) -> None:
    page = generate_latest(_registry()).decode().replace("smelt_", f"{prefix}smelt_")
    found = sizes_from_pages([page, page], "m", 1)
    assert found.dims["sequence"].counts == {8: 120, 32: 60, 120: 18, 512: 2}
    assert found.dims["sequence"].total == 2 * sum(SEEN)
    assert found.dims["batch"].counts == {1: 150, 4: 50}
    assert found.batches == {1: 6, 4: 2}
    assert (found.real, found.padded) == (2 * sum(SEEN), sum(SEEN) / 2)


def test_advice_as_json(store: str, endpoint: str) -> None:
    said = json.loads(_run("m", "--store", store, "--metrics", endpoint, "--num", "3", "--json"))
    assert (said["num_requests"], said["measured_waste"]) == (100, pytest.approx(0.2))
    assert said["caution"] == ""
    rows = said["rows"]
    assert (rows["dimension"], rows["counts"]) == ("batch", {"1": 75, "4": 25})
    assert (rows["p50"], rows["p90"], rows["mean"], rows["largest"]) == (1, 4, 1.75, 4)
    advice = said["dimensions"]["sequence"]
    assert (advice["p50"], advice["p90"], advice["p99"], advice["largest"]) == (8, 32, 120, 512)
    assert (advice["now"], advice["proposed"]) == ([512], [32, 120, 512])
    assert advice["waste_now"] == pytest.approx(1 - sum(SEEN) / (512 * 100))
    assert advice["waste_proposed"] == pytest.approx(1 - sum(SEEN) / (32 * 90 + 120 * 9 + 512))
    recipe = Recipe.model_validate(said["recipe"])
    assert [bucket.dims["sequence"].max for bucket in recipe.buckets] == [32, 120, 512]
    assert all(bucket.dims["batch"] == BUCKET.dims["batch"] for bucket in recipe.buckets)


def test_the_snippet_is_a_recipe(store: str, endpoint: str) -> None:
    text = _run("m", "--store", store, "--metrics", endpoint)
    assert "100 requests, 20.0% of what the engines computed was padding" in text
    recipe = Recipe.from_yaml(text.split("with --apply:\n")[1])
    assert [b.dims["sequence"].max for b in recipe.buckets] == [8, 32, 120, 512]
    assert yaml.safe_load(text.split("with --apply:\n")[1]).keys() == {"buckets"}


def test_waste_that_cannot_be_is_said_to_be_none(store: str, endpoint: str) -> None:
    told = "no input has role: mask in the recipe, so each request runs at its own length"
    registry = Registry(open_store(store), Path(store) / "cache")
    masked = Recipe(buckets=(BUCKET,), inputs={"mask": InputRecipe(role=InputRole.MASK)})
    for number, recipe in enumerate((Recipe(buckets=(BUCKET,)), masked)):
        registry.add_model_version(
            name="other",
            master=world.MASTER,
            recipe=recipe,
            source="s",
            source_fingerprint=str(number),
        )
    where = ("--store", store, "--metrics", endpoint)
    assert told not in _run("m", *where), "some was measured"
    text = _run("other", "--version", "1", *where)
    assert told in text
    assert "proposed" not in text
    assert not json.loads(_run("other", "--version", "1", "--json", *where))["is_padded"]
    assert told not in _run("other", "--version", "2", *where)


def test_rows_are_shown_beside_lengths(store: str, endpoint: str) -> None:
    lines = _run("m", "--store", store, "--metrics", endpoint).replace("│", " ").splitlines()
    shown = [line.split() for line in lines]
    assert ["batch", "(rows", "of", "a", "request)", "1.8", "1", "4", "4", "4"] in shown
    assert ["batch", "(rows", "of", "a", "request)", "1", "75", "75.0%"] in shown
    assert ["sequence", "32", "30", "30.0%"] in shown


def test_few_requests_are_said_to_be_few(store: str, endpoint: str, tmp_path: Path) -> None:
    assert "Caution" not in _run("m", "--store", store, "--metrics", endpoint)
    Registry(open_store(store), tmp_path / "cache").add_model_version(
        name="other",
        master=world.MASTER,
        recipe=Recipe(buckets=(BUCKET,)),
        source="s",
        source_fingerprint="0",
    )
    text = _run("other", "--store", store, "--metrics", endpoint)
    assert "Caution: only 2 requests were seen" in text
    said = json.loads(_run("other", "--store", store, "--metrics", endpoint, "--json"))
    assert said["caution"].startswith("only 2 requests")


def test_a_batch_alone_is_shown_without_a_proposal(
    store: str, endpoint: str, tmp_path: Path
) -> None:
    Registry(open_store(store), tmp_path / "cache").add_model_version(
        name="batch-only",
        master=world.MASTER,
        recipe=Recipe(),
        source="s",
        source_fingerprint="0",
    )
    text = _run("batch-only", "--store", store, "--metrics", endpoint)
    assert "batch (rows of a request)" in text
    assert "Only the batch is dynamic" in text
    assert "only 1 request was seen" in text


def test_a_model_without_a_recipe_has_the_sizes_by_default_now(
    store: str, endpoint: str, tmp_path: Path
) -> None:
    ids = TensorSpec(name="ids", datatype="INT64", shape=("batch", "sequence"))
    master = world.MASTER.model_copy(update={"digest": "c" * 64, "inputs": (ids,)})
    seen = sizes_from_pages([generate_latest(_registry()).decode()], "m", 1)
    registry = Registry(open_store(store), tmp_path / "cache")
    model = registry.add_model_version(
        name="plain", master=master, recipe=Recipe(), source="s", source_fingerprint="0"
    )
    said = advice_document(model, seen, 2)
    assert said["dimensions"]["sequence"]["now"] == [128]


def test_no_requests_no_endpoint_no_fleet(store: str, endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no fleet serves from store .*give --metrics"):
        _run("m", "--store", store)
    with pytest.raises(NotReadyError, match="no metrics endpoint answers of 127.0.0.1:1; give"):
        _run("m", "--store", store, "--metrics", "127.0.0.1:1")
    Registry(open_store(store), tmp_path / "cache").add_model_version(
        name="m", master=world.MASTER, recipe=Recipe(), source="s", source_fingerprint="1"
    )
    with pytest.raises(NotFoundError, match="no sizes were seen of m version 2"):
        _run("m", "--store", store, "--metrics", endpoint)


def _sampled(store: str, model: str, lengths: Sequence[int], folder: Path) -> Registry:
    """The store, with samples of these lengths, every second one padded to twice its length."""
    registry = Registry(open_store(store), folder / "cache")
    rows = []
    for number, length in enumerate(lengths):
        valid = np.arange(length * (1 + number % 2)) < length
        rows.append(SampledRow("b", {"ids": valid * 7, "mask": valid.astype(np.int64)}))
    span = (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))
    registry.add_sample_window(model, 1, span, rows, {"b": len(rows)})
    return registry


def _log_normal(num: int) -> list[int]:
    """Lengths as of short texts with a long tail: half below 32 tokens, the longest cut at 512."""
    drawn = np.random.default_rng(0).lognormal(np.log(32), 0.9, num)
    return np.clip(np.ceil(drawn), 2, 512).astype(int).tolist()


def test_buckets_from_samples_are_applied_and_halve_the_padding(store: str, tmp_path: Path) -> None:
    specs = [TensorSpec(name=n, datatype="INT64", shape=("batch", "sequence")) for n in NAMES]
    master = world.MASTER.model_copy(update={"digest": "d" * 64, "inputs": tuple(specs)})
    recipe = Recipe(buckets=(BUCKET,), inputs={"mask": InputRecipe(role=InputRole.MASK)})
    registry = Registry(open_store(store), tmp_path / "cache")
    registry.add_model_version(
        name="texts", master=master, recipe=recipe, source="s", source_fingerprint="0"
    )
    timings = tuple(
        Timing(
            bucket="b",
            sizes={"batch": 32, "sequence": size},
            p50_s=0.512,
            p95_s=1,
            throughput=1,
            eager_p50_s=size / 1000,
        )
        # The engine pads both to the bucket.
        for size in (64, 512)
    )
    proof = small_proof(ProofOutcome.PASSED).model_copy(
        update={"timings": timings, "device": DEVICE}
    )
    terms = proof_terms(recipe, Precision.FP32, None)
    key = small_key(
        master_digest=master.digest, kind=EngineKind.XLA, buckets=(BUCKET,), proof_terms=terms
    )
    registry.publish_engine(small_manifest(key), {}, proof)
    lengths = _log_normal(2000)
    _sampled(store, "texts", lengths, tmp_path)
    where = ("texts", "--store", store, "--json")
    said = json.loads(_run(*where, "--apply"))
    advice = said["dimensions"]["sequence"]
    assert (said["num_requests"], said["measured_waste"], said["published"]) == (2000, None, 2)
    assert advice["mean"] == pytest.approx(np.mean(lengths))
    assert len(advice["proposed"]) <= 4
    assert advice["measured_on"] == "xla fp32 on cpu-x86_64-v3"
    before, after = advice["rows_per_s"]
    # A row of 512 takes 16 ms.
    assert before == pytest.approx(62.5)
    assert after == pytest.approx(before * advice["speedup"])
    assert after > 4 * before
    padded = [edge / (1 - edge) for edge in (advice["waste_now"], advice["waste_proposed"])]
    assert padded[1] < padded[0] / 2
    published = registry.model_version("texts")
    assert [b.dims["sequence"].max for b in published.buckets] == advice["proposed"]
    # In proportion to its elements a run gains nothing by more rows.
    assert advice["shapes_proposed"] == [[size, 32] for size in advice["proposed"]]
    assert (published.version, published.master) == (2, master)
    assert published.recipe.model_copy(update={"buckets": (BUCKET,)}) == recipe
    # The same again publishes nothing.
    assert json.loads(_run(*where, "--apply"))["published"] == 2
    text = _run(*where[:-1], "--apply")
    assert text.splitlines()[-1] == "Nothing was published: version 2 keeps its buckets"
    # Of that version no engine of one shape a bucket is proven yet.
    assert "sequence: eager on cpu-x86_64-v3 computes requests at their own sizes" in text
