"""`smelt report` on stores with made proofs: every section, and nothing that a browser runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.advise.advise import Advised
from services.cli.main import app
from services.cli.report.engine_entries import engine_entries, timed_sides
from services.cli.report.report_parts import roofline_chart
from services.contracts.errors import InvalidRequestError
from services.contracts.hardware.facts import DeviceFacts
from services.contracts.hardware.kinds import EngineKind, Precision
from services.contracts.model.manifest import Proof
from services.contracts.ratio import Ratio
from services.contracts.registry.registry import Registry
from services.contracts.terms import proof_terms
from services.contracts.text.words import readable_size
from tests.unit.services.cli.output.html_reader import Loads
from tests.unit.services.cli.report.report_world import (
    MASTER,
    SIZES,
    add_generation,
    store_with_model,
)
from tests.unit.services.controller import build_world as world

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
PRICES = "devices: {cpu-x86_64-v3: {price_per_h: 3.6}}"
PROFILE = f"""
models: {{m: {{requests_per_s: 1, p99_ms: 50}}}}
{PRICES}
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Version 1 of model `m`, in the home of this test, which is its folder too."""
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return store_with_model(tmp_path)


def reported(*options: str) -> tuple[Any, Loads]:
    """The document, and what a browser reads of the page."""
    command = ["report", "m", "--json", *options]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    page = Path(document["file"]).read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not [word for word in ("@import", "url(", "fetch(", "XMLHttpRequest") if word in page]
    read = Loads(page)
    assert read.loading == []
    return document, read


def test_a_controller_that_does_not_answer_is_a_note(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_CONTROLLER", "127.0.0.1:1")
    _, read = reported()
    assert "what is served now is not known: controller at 127.0.0.1:1" in "\n".join(read.words)


@pytest.mark.parametrize("prices", [PRICES, PROFILE], ids=["devices alone", "a plan's profile"])
def test_every_figure_stands_beside_where_it_is_from(
    prices: str, registry: Registry, tmp_path: Path
) -> None:
    add_generation(registry, "cpu-x86_64-v3")
    (tmp_path / "profile.yaml").write_text(prices)
    document, read = reported("--prices", "profile.yaml")
    assert document == {"model": "m", "version": 1, "file": "m-v1.html", "note": ""}
    # By size: latency, rows/s, memory, kernels where they are known, and a million rows at 3.6 an
    # hour; the largest distance over all shapes, and its limit; agreement.
    for row in (
        ("eager", "8 x 128", "40.00", "60.00", "200.0", "50.0 MB", "31 by PyTorch", "5.00"),
        ("fallback", "8 x 128", "20.00", "30.00", "400.0", "80.0 MB", "-", "2.50"),
        ("800.0", "70.0 MB", "9 by OpenVINO too far off", "1.25"),
        ("openvino fp32", "1 x 16", "1.00", "1.50", "1,000.0", "70.0 MB", "-", "1.00"),
        ("openvino fp32", "y too far off", "rel_l2", "7e-06", "1e-05", "passed"),
        ("openvino fp32", "y", "column", "0.25", "0.5", "passed"),
        ("openvino fp32", "z", "agreement", "0.969", "0.9", "passed"),
        ("inductor bf16", "overlap", "task", "0.875", "0.98", "too far off"),
    ):
        assert "\n".join(row) in "\n".join(read.words), row
    text = "\n".join(read.words)
    for words in (
        "prove 1 min 1 s",
        "one would serve with openvino fp32",
        "inductor bf16: proof failed: too far off",
        "no compiler: too far off",
        "blind to 'gain too far off'",
        "eager, fallback, openvino fp32: proof of 2026-01-01 00:00:00Z on Device too far off; ",
        "a million requests of one row, on a device for 3.6 an hour",
        "best of 1 proven: openvino fp32, 2.00x the fallback",
    ):
        assert words in text, words
    (engine,) = registry.engines(registry.model_version("m").master.digest)
    assert readable_size(engine.manifest.num_bytes) in read.words
    # Under accuracy alone.
    assert text.count("openvino fp32: proven on 6 drawn samples") == 1


def test_without_a_price_a_million_requests_cost_hours(registry: Registry) -> None:
    add_generation(registry, "cpu-x86_64-v3")
    _, read = reported()
    text = "\n".join(read.words)
    assert "\n".join(("200.0", "50.0 MB", "31 by PyTorch", "1.39 h")) in text
    assert "a million requests of one row, in hours of a device, busy" in text


def test_texts_of_the_store_run_nothing(registry: Registry) -> None:
    add_generation(registry, "cuda-sm90", HOSTILE)
    _, read = reported()
    for words in ("proof failed", "no compiler", "Device", "gain", "2026.4"):
        assert any(words in each and HOSTILE in each for each in read.words), words


def test_an_older_proof_has_no_kernels(registry: Registry) -> None:
    add_generation(registry, "cpu-x86_64-v3")
    (engine,) = registry.engines()
    older = engine.proof.model_copy(update={"kernels": {}})
    assert b"kernels" not in older.canonical_json()
    registry.add_proof(engine.digest, Proof.from_json(older.canonical_json()))
    _, read = reported()
    assert "kernels" in read.words
    assert not [word for word in read.words if " by PyTorch" in word or " by OpenVINO" in word]


def test_figures_of_a_busy_machine_are_marked(registry: Registry) -> None:
    add_generation(registry, "cpu-x86_64-v3")
    (engine,) = registry.engines()
    wild = Ratio(low=0.5, median=2.0, high=4.0, num_pairs=20)
    timings = tuple(e.model_copy(update={"ratio": wild}) for e in engine.proof.timings)
    registry.add_proof(engine.digest, engine.proof.model_copy(update={"timings": timings}))
    _, read = reported()
    text = "\n".join(read.words)
    for row in (("eager ?", "8 x 128", "40.00"), ("openvino fp32 ?", "1 x 16", "1.00")):
        assert "\n".join(row) in text, row
    # In the legends of latency and rows per second too.
    assert read.words.count("fallback ?") == 2 + len(SIZES)
    assert "?: timed while the machine was busy" in text


def test_each_generation_has_its_own_section(registry: Registry) -> None:
    for generation in ("cuda-sm90", "cpu-x86_64-v3", "cuda-sm80"):
        add_generation(registry, generation)
    _, read = reported("--output", "all.html")
    names = ["cpu-x86_64-v3", "cuda-sm80", "cuda-sm90"]
    assert [word for word in read.words if word in names] == names
    assert [word for word in read.words if word.startswith("Device: published for H100; eager")]
    (roof,) = [word for word in read.words if word.startswith("Device: published for A100")]
    assert roof.endswith("again: smelt rebuild m --generation cuda-sm80 --version 1")


def test_an_engine_that_was_proven_on_a_higher_class_is_in_the_section_of_its_own(
    registry: Registry,
) -> None:
    version = registry.model_version("m")
    key = world.key(
        EngineKind.OPENVINO,
        master_digest=MASTER,
        generation="cpu-x86_64-v3",
        buckets=version.buckets,
        proof_terms=proof_terms(version.recipe, Precision.FP32, None),
    )
    device = DeviceFacts(generation="cpu-x86_64-avx512", name="Xeon", memory_gib=64, toolchain={})
    files = {"engine": Path(__file__)}
    registry.publish_engine(world.manifest(key), files, world.proof(device=device))
    _, read = reported()
    names = ["cpu-x86_64-avx512", "cpu-x86_64-v3"]
    assert [word for word in read.words if word in names] == names
    found = "openvino fp32: proof of 2026-01-01 00:00:00Z on Xeon"
    assert found in read.words[read.words.index(names[1]) :]


def test_nothing_is_above_its_roof(registry: Registry) -> None:
    add_generation(registry, "cuda-sm90")
    own = Advised(registry, registry.model_version("m"), is_sampled=False)
    engines = registry.engines()
    sides = timed_sides(engine_entries(registry, engines, None), [])
    device = engines[0].proof.device
    assert device
    chart = roofline_chart(own, sides, device)
    assert chart
    assert list(chart.lines) == ["eager", "fallback", "openvino fp32", "roof in fp32"]
    roof = chart.lines["roof in fp32"]
    # The memory's slope, and the level of products.
    assert roof[0][1] == pytest.approx(3350 * roof[0][0])
    assert roof[-1][1] == pytest.approx(66.9e3)
    for name in chart.dots:
        assert len(chart.lines[name]) == len(SIZES)
        assert all(0 < y < 3350 * x for x, y in chart.lines[name])


@pytest.mark.usefixtures("registry")
def test_without_engines_it_says_what_to_try() -> None:
    _, read = reported()
    for words in ("No engine was timed.", "Try in this order, times the fallback"):
        assert words in read.words
    assert "svg" not in read.tags


@pytest.mark.usefixtures("registry")
def test_a_file_that_cannot_be_written_is_named() -> None:
    command = ["report", "m", "--output", "nowhere/m.html"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InvalidRequestError)
    assert str(done.exception).startswith("nowhere/m.html: cannot be written: No such")
