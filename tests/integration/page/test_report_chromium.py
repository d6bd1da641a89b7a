"""The page of `smelt report` as a browser shows it, on a desktop and on a phone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from tests.browser import CHROMIUM, Browser, chromium
from tests.unit.services.cli.report.report_world import add_generation, store_with_model

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium is here: apt-get install chromium"
)
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"></script><b>&amp;" + 60 * "wide"
NO_WIDER = "document.documentElement.scrollWidth <= innerWidth"
STATES = {
    "no engines": (),
    "failed proofs": (("cuda-sm90", HOSTILE),),
    "several generations": tuple((each, "too far off") for each in ("cuda-sm80", "cpu-x86_64-v3")),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@contextmanager
def served(path: Path) -> Iterator[tuple[str, list[str]]]:
    """An address of the file alone, and what is asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(path.read_bytes() if self.path == "/" else b"")

        def log_message(self, *_: object) -> None:
            pass

    # Of several connections that a browser opens it may use only one.
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("state", STATES)
def test_it_fits_each_screen_and_asks_for_nothing(
    state: str, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path))
    registry = store_with_model(tmp_path)
    for generation, words in STATES[state]:
        add_generation(registry, generation, words)
    page = tmp_path / "m.html"
    done = CliRunner().invoke(app, ["report", "m", "--output", str(page)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with served(page) as (url, asked):
        for width in (1180, 390):
            browser.open(url, width=width)
            assert browser.run(NO_WIDER), width
            assert browser.run("document.title") == "m version 1: report"
            assert browser.complaints == []
        assert set(asked) <= {"/", "/nothing", "/favicon.ico"}
    num_sections = browser.run("document.querySelectorAll('h2').length")
    assert num_sections == max(len(STATES[state]), 1)
    # Latency and rows/s; rooflines of devices whose peak is published.
    with_peak = sum(generation.startswith("cuda") for generation, _ in STATES[state])
    num_plots = browser.run("document.querySelectorAll('svg').length")
    assert num_plots == 2 * len(STATES[state]) + with_peak
    assert browser.run("document.querySelectorAll('script, img').length") == 0
