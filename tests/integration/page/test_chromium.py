"""The page as a browser shows it: empty, failed, a thousand models, and what others wrote."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.contracts.security.fleet_security import page_token
from services.pb import fleet_v1_pb2 as fleet
from tests.browser import CHROMIUM, SHOWN, Browser, chromium
from tests.unit.services.controller.page.page_host import (
    TOKEN,
    PageHost,
    fill,
    page_host,
    report,
    served_model,
)

pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium is here: apt-get install chromium"
)
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"></script><b>&amp;"
# Not innerText, which lacks what Chromium has not laid out yet.
SEEN = "document.querySelector('main').textContent"
NO_WIDER = "document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PageHost]:
    with page_host(tmp_path) as made:
        yield made


def opened(browser: Browser, host: PageHost, **window: object) -> str:
    """The text of the page once it shows the fleet."""
    browser.open(host.url, **window).run(SHOWN)  # type: ignore[arg-type]
    return str(browser.run(SEEN))


def test_an_empty_fleet_says_what_to_do(browser: Browser, host: PageHost) -> None:
    text = opened(browser, host)
    assert "No model yet." in text
    assert "smelt models add NAME MODEL.onnx" in text
    assert "Nothing is being built or proven." in text
    assert browser.complaints == []


def test_what_failed_comes_first_and_says_why(browser: Browser, host: PageHost) -> None:
    def show() -> None:
        host.state.set_model(served_model("fine"))
        host.state.attach(report("fine"))
        host.state.set_model(served_model("large", state="LOADING", unplaced="no GPU has 80 GiB"))
        host.state.set_model(served_model("m", state="UNAVAILABLE", reason="it ended"))
        host.state.note_look()
        host.state.note_look("the bucket is away")

    host.do(show)
    host.now_s += 300
    text = opened(browser, host)
    names = browser.run("[...document.querySelectorAll('.name')].map(each => each.textContent)")
    assert names == ["large", "m", "fine"]
    assert "no GPU has 80 GiB" in text
    assert "cannot read or change store and cluster: the bucket is away" in text
    assert "300 s ago: what is below is old" in text
    assert "down 2" in text
    assert browser.run("document.title") == "(2) Smelt"


def test_when_the_controller_is_away_old_figures_stay_and_say_of_when(
    browser: Browser, host: PageHost
) -> None:
    host.do(lambda: host.state.set_model(served_model("kept", state="LOADING")))
    opened(browser, host)
    host.broken = "502 Bad Gateway"
    browser.until("document.querySelector('.notice.bad')")
    text = str(browser.run(SEEN))
    assert "kept" in text
    assert "What is below is of " in text
    host.broken = ""
    browser.until("!document.querySelector('.notice.bad')")


def test_without_a_token_it_asks_for_one(browser: Browser, host: PageHost) -> None:
    host.do(lambda: host.state.set_model(served_model("secret")))
    browser.open(host.origin + "/")
    browser.run("sessionStorage.clear()")
    for given in ("wrong", page_token(TOKEN)):
        browser.open(f"{host.origin}/#token=wrong").run(SHOWN)
        assert "secret" not in browser.run(SEEN)
        assert browser.run("location.hash") == ""
        browser.run(f"document.getElementById('token').value = '{given}'")
        browser.run("document.querySelector('#login button').click()")
    browser.until("document.querySelector('main').textContent.includes('secret')")
    assert browser.run("document.getElementById('login').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_others_wrote_stays_text_on_a_phone(
    browser: Browser, host: PageHost, scheme: str
) -> None:
    long = "x" * 400

    def show() -> None:
        host.state.set_model(served_model(HOSTILE, state="UNAVAILABLE", reason=HOSTILE + long))
        failed = fleet.REPLICA_STATE_FAILED
        host.state.attach(report(HOSTILE, state=failed, detail=HOSTILE + long))
        place = {"model_name": HOSTILE, "model_version": 1, "generation": long}
        host.state.set_builds([fleet.FleetBuild(**place, reason=HOSTILE, started_at=HOSTILE)])

    host.do(show)
    text = opened(browser, host, width=360, scheme=scheme)
    assert HOSTILE in text
    browser.run("document.querySelector('.model').open = true")
    browser.until("document.querySelector('.more .notice')")
    assert "This is not known now" in browser.run(SEEN)
    assert browser.run("document.querySelectorAll('img, b').length") == 0
    assert browser.run("document.title") == "(1) Smelt"
    assert browser.run(NO_WIDER)


def test_many_models_are_found_by_keyboard_and_explained(browser: Browser, host: PageHost) -> None:
    fill(host, 1000)
    host.do(lambda: host.state.set_model(served_model("m")))
    host.do(lambda: host.state.attach(report("m")))
    text = opened(browser, host, width=360)
    assert "all 1001" in text
    assert "failed builds 20" in text
    assert browser.run(NO_WIDER)
    # What a person sees first was made; the rest is made as it is scrolled to.
    assert browser.run("document.querySelectorAll('.model').length") < 200
    browser.run("document.getElementById('search').focus()")
    browser.call("Input.insertText", text="MODEL-0299 sm90")
    browser.until("document.querySelectorAll('.model').length === 1")
    assert "openvino fp32" in browser.run(SEEN)
    assert "refuses 2 of 3 faults blind to 1" in browser.run(SEEN)
    browser.run("const box = document.getElementById('search'); box.value = ''; box.oninput()")
    browser.run("document.getElementById('search').focus()")
    browser.call("Input.insertText", text="m v3 fallback")
    browser.until("[...document.querySelectorAll('.name')].some(each => each.textContent === 'm')")
    browser.run(
        "[...document.querySelectorAll('.name')].find(each => each.textContent === 'm')"
        ".closest('summary').focus()"
    )
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        browser.call("Input.dispatchKeyEvent", type=kind, **key)
    browser.until("document.querySelector('.model[open] h3')")
    heading = browser.run("document.querySelector('.model[open] h3').textContent")
    assert heading.startswith("cpu-x86_64-v3: serves with the fallback (ONNX Runtime)")
    assert browser.complaints == []


def test_a_tall_window_is_filled(browser: Browser, host: PageHost) -> None:
    def show() -> None:
        for number in range(200):
            host.state.set_model(served_model(f"m{number}", state="LOADING"))

    host.do(show)
    opened(browser, host, height=4000)
    # Nothing is scrolled, and what is made at first ends far above the window's end.
    browser.until("document.getElementById('end').getBoundingClientRect().top > 4600")


def test_a_change_keeps_what_is_open(browser: Browser, host: PageHost) -> None:
    host.do(lambda: host.state.set_model(served_model("m", state="LOADING")))
    opened(browser, host)
    browser.run("document.querySelector('.model').open = true")
    browser.run("document.querySelector('summary').focus()")
    host.do(lambda: host.state.set_model(served_model("a", state="LOADING")))
    host.now_s += 5
    browser.until("document.querySelectorAll('.model').length === 2")
    is_open = "[...document.querySelectorAll('.model')].map(each => each.open)"
    assert json.dumps(browser.run(is_open)) == "[false, true]"
    assert browser.run("document.activeElement.textContent.startsWith('m')")
