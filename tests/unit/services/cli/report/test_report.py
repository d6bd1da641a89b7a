"""`smelt report` on stores with made proofs: every section, and nothing that a browser runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.report.report_page import report_page
from services.contracts.errors import InvalidRequestError
from services.contracts.registry.registry import Registry
from tests.unit.services.cli.output.html_reader import Loads
from tests.unit.services.cli.report.report_world import add_generation, store_with_model

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
PROFILE = """
models: {m: {requests_per_s: 1, p99_ms: 50}}
devices: {cpu-x86_64-v3: {price_per_h: 3.6}}
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
    assert not [word for word in ("@import", "url(", "fetch(", "XMLHttpRequest") if word in page]
    read = Loads(page)
    assert read.loading == []
    return document, read


def test_every_figure_stands_beside_where_it_is_from(registry: Registry, tmp_path: Path) -> None:
    add_generation(registry, "cpu-x86_64-v3")
    (tmp_path / "profile.yaml").write_text(PROFILE)
    document, read = reported("--prices", "profile.yaml")
    assert document["file"] == "m-v1.html"
    (found,) = document["generations"]
    assert [side["name"] for side in found["sides"]] == ["eager", "fallback", "openvino fp32"]
    text = "\n".join(read.words)
    # Latency, memory and rows/s; the largest distance over all shapes, its limit; a task that
    # was missed; a million rows at 1,000 rows/s and 3.6 an hour.
    for figure in (
        "10.00", "15.00", "800.0", "1,000.0", "70.0 MB", "7e-06", "1e-05", "0.969", "1.00",
    ):  # fmt: skip
        assert figure in read.words, figure
    for words in (
        "prove 1 min 1 s",
        "one would serve with openvino fp32",
        "inductor bf16: proof failed: too far off",
        "no compiler: too far off",
        "blind to 'gain too far off'",
        "proof of 2026-01-01 00:00:00Z on Device too far off; again: smelt rebuild m",
        "A device costs 3.6 an hour",
        "best of 1 proven: openvino fp32, 2.00x the fallback",
    ):
        assert words in text, words


def test_texts_of_the_store_run_nothing(registry: Registry) -> None:
    add_generation(registry, "cuda-sm90", HOSTILE)
    document, read = reported()
    # Of a device whose peak is published: in its legend, too.
    assert document["generations"][0]["roofline"]
    assert any(HOSTILE in words for words in read.words)
    version = registry.model_version("m")
    renamed = version.model_copy(update={"name": HOSTILE})
    page = report_page(document | {"model": HOSTILE, "command": HOSTILE}, renamed)
    assert Loads(page).loading == []
    assert "default-src 'none'" in page


def test_each_generation_has_its_own_section(registry: Registry) -> None:
    for generation in ("cuda-sm90", "cpu-x86_64-v3", "cuda-sm80"):
        add_generation(registry, generation)
    document, read = reported("--output", "all.html")
    names = [each["generation"] for each in document["generations"]]
    assert names == ["cpu-x86_64-v3", "cuda-sm80", "cuda-sm90"]
    assert [word for word in read.words if word in names] == names
    gpu = document["generations"][2]["roofline"]
    assert gpu["peak"] == "published for H100"
    assert set(gpu["roofs"]) == {"fp32"}
    # No point above what the device reaches.
    most = max(y for _, y in gpu["roofs"]["fp32"])
    assert all(0 < y < most for points in gpu["points"].values() for _, y in points)


@pytest.mark.usefixtures("registry")
def test_without_engines_it_says_what_to_try() -> None:
    document, read = reported()
    (found,) = document["generations"]
    assert found["sides"] == found["proofs"] == found["builds"] == []
    assert "No engine was timed there." in read.words
    assert "Try in this order, times the fallback" in read.words
    assert "svg" not in read.tags


@pytest.mark.usefixtures("registry")
def test_a_file_that_cannot_be_written_is_named() -> None:
    command = ["report", "m", "--output", "nowhere/m.html"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InvalidRequestError)
    assert str(done.exception).startswith("--output nowhere/m.html: cannot be written: No such")
