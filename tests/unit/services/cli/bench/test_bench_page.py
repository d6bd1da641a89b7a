"""The page loads nothing, and has every figure, plot and warning."""

from typing import Any

from services.cli.bench.bench_page import bench_page
from services.cli.bench.bench_report import PERCENTS, bench_text
from tests.unit.services.cli.output.html_reader import Loads


def cell(size: str, callers: int, **others: Any) -> dict[str, Any]:
    return {
        "size": size,
        "rows": 4,
        "callers": callers,
        "num_answered": 100,
        "requests_per_s": 20.5 * callers,
        "rows_per_s": 82.0 * callers,
        "latency_ms": {f"p{each:g}": 0.13 * each * callers for each in PERCENTS} | {"max": 2345.67},
        "errors": {},
        "error_details": {},
        "client_share": 0.5,
        "served_by": ["openvino bf16 cpu-x86_64-amx"],
    } | others


def document(*cells: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "a <b>",
        "version": None,
        "address": "127.0.0.1:8001",
        "seconds": 5.0,
        "command": "smelt bench 'a <b>'",
        "created_at": "2026-11-24T20:00:00+00:00",
        "versions": {"smelt": "0.1.0", "python": "3.11.7"},
        "client_cpus": 2,
        "is_cached": False,
        "cells": list(cells),
    }


def test_it_loads_nothing_and_shows_all() -> None:
    sizes = "batch=1, sequence=16", "batch=4, <s>=128"
    page = bench_page(document(*(cell(size, n) for size in sizes for n in (1, 8))))
    read = Loads(page)
    assert read.loading == []
    assert not {"@import", "url(", "fetch(", "XMLHttpRequest"} & {
        word for word in ("@import", "url(", "fetch(", "XMLHttpRequest") if word in page
    }
    # Three by callers, and the distribution of each size.
    assert page.count("<figure>") == page.count("<svg") == 3 + len(sizes)
    assert 'name="viewport"' in page
    # In the table, as series of three plots, and of one as its title.
    for size in sizes:
        assert read.words.count(size) >= 2 + 3
        assert f"Latency distribution in ms, {size}" in read.words
    for figure in ("164.0", "656.0", "6.50", "52.00", "12.87", "102.96", "2345.67"):
        assert figure in read.words
    for words in ("2026-11-24 20:00:00Z", "smelt bench 'a <b>'", "smelt 0.1.0", "python 3.11.7"):
        assert any(words in each for each in read.words)
    assert "a <b>: load over gRPC" in read.words


def test_failures_a_busy_client_and_a_cache_are_warned_of() -> None:
    failed = {"errors": {"UNAVAILABLE": 3}, "error_details": {"UNAVAILABLE": "no <replica>"}}
    found = document(cell("static", 1, **failed), cell("static", 8, client_share=0.97))
    found["is_cached"] = True
    read = Loads(bench_page(found))
    lines = [part for part in bench_text(found) if isinstance(part, str)]
    assert [line for line in lines if line in read.words] == lines
    cache, failure, busy = lines
    assert cache.startswith("The model's recipe has response_cache")
    assert failure == "static, callers: 1: 3 of 103 requests failed: UNAVAILABLE: no <replica>"
    assert busy.startswith("static, callers: 8: this client was busy or waited for a CPU 97% of")


def test_an_engine_that_takes_anothers_place_is_named_after_it() -> None:
    first, second = cell("static", 1), cell("static", 8, served_by=["fallback", "openvino bf16"])
    (table,) = bench_text(document(first, second))
    assert table.title == (  # type: ignore[union-attr]
        "static, served by openvino bf16 cpu-x86_64-amx, then fallback, then openvino bf16"
    )
