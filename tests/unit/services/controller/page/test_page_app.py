"""The page's port: who may read, what each answer forbids a browser, and what is asked twice."""

import base64
import hashlib
import re
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

import pytest

from services.contracts.errors import StoreError
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.security.fleet_security import FleetTokens, page_token
from services.contracts.store.object_store import ObstoreArtifactStore
from services.controller.build.build_view import FleetView
from services.controller.page import page_app
from services.controller.page.page_app import PageApp
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller import build_world as world
from tests.unit.services.controller.page.page_host import (
    TOKEN,
    PageHost,
    page_host,
    report,
    served_model,
)

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\u202e"
ASKED = "/model?name=m&version=1"


@pytest.mark.parametrize("path", ["/state", "/news", ASKED])
@pytest.mark.parametrize(
    "header", ["", "Bearer ", "Bearer x", f"Bearer {TOKEN}", page_token(TOKEN), "Bearer \xe4"]
)
def test_only_the_pages_own_token_opens_it(host: PageHost, path: str, header: str) -> None:
    """The fleet's token can attach replicas: it has no business in a browser."""
    status, _, body = host.get(path, Authorization=header)
    assert status == 401
    assert "smelt status" in body["error"]
    assert host.get(path)[0] == 200


def test_a_token_in_the_address_is_none(host: PageHost) -> None:
    assert host.get(f"/state?token={page_token(TOKEN)}", Authorization="")[0] == 401


def test_a_fleet_without_a_token_shows_nothing(tmp_path: Path) -> None:
    with page_host(tmp_path, token="") as host:
        status, _, body = host.get("/state")
        assert status == 403
        assert "SMELT_CONTROLLER_FLEET_TOKEN_FILE" in body["error"]


@pytest.mark.parametrize("path", ["/", "/state", "/news", ASKED, "/nothing"])
def test_no_answer_is_kept_framed_or_guessed_at(host: PageHost, path: str) -> None:
    headers = host.get(path)[1]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_runs_its_own_script_and_loads_nothing(host: PageHost) -> None:
    status, headers, html = host.get("/", Authorization="")
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert status == 200
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert not re.findall(r"https?:|//\w|src=|innerHTML|insertAdjacent|document\.write", html)


def test_what_did_not_change_is_not_sent_again(host: PageHost) -> None:
    host.now_s += 10
    host.looked_s = host.now_s
    tag = host.get("/state")[1]["ETag"]
    host.now_s += 10
    status, again, body = host.get("/state", If_None_Match=tag)
    assert (status, again["ETag"], body) == (304, tag, "")
    assert float(again["Smelt-Age"]) == 10.0
    host.do(lambda: host.state.set_model(served_model("other")))
    host.now_s += 2
    status, changed, document = host.get("/state", If_None_Match=tag)
    assert (status, len(document["models"])) == (200, 2)
    assert changed["ETag"] != tag


def test_one_model_is_explained_as_smelt_why_does(host: PageHost) -> None:
    host.do(lambda: host.state.attach(report(fallback_reason="not_proven")))
    _, _, document = host.get(ASKED)
    (case,) = document["generations"]
    assert case["generation"] == "cpu-x86_64-v3"
    assert "serves with the fallback (ONNX Runtime): none of its engines" in case["serves"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/model?name=n&version=1", 404),
        ("/model?name=m&version=7", 404),
        ("/model?name=../models/m&version=1", 404),
        (f"/model?{urlencode({'name': HOSTILE, 'version': '1'})}", 404),
        ("/model?name=m", 404),
        ("/model?name=m&version=01", 404),
        ("/model?name=m&version=" + "9" * 400, 404),
        ("/models", 404),
        ("/../page.html", 404),
    ],
)
def test_what_is_not_there_is_said(host: PageHost, path: str, status: int) -> None:
    found, headers, body = host.get(path)
    assert found == status
    assert headers["Content-Type"].startswith("application/json")
    assert body["error"]


def test_names_and_reasons_arrive_as_they_are(host: PageHost) -> None:
    def show() -> None:
        host.state.set_model(served_model(HOSTILE, state="UNAVAILABLE", reason=HOSTILE))
        host.state.attach(report(HOSTILE, state=fleet.REPLICA_STATE_FAILED, detail=HOSTILE))

    host.do(show)
    host.now_s += 10
    (model,) = [m for m in host.get("/state")[2]["models"] if m["name"] == HOSTILE]
    assert model["rows"][0]["why"] == HOSTILE


def test_it_is_made_once_a_second_however_many_look(host: PageHost) -> None:
    host.now_s += 60.0
    first = host.get("/state")[1]["ETag"]
    host.do(lambda: host.state.set_model(served_model("another")))
    assert host.get("/state")[1]["ETag"] == first
    host.now_s += 1.0
    assert host.get("/state")[1]["ETag"] != first


def test_what_takes_long_is_made_less_often(
    host: PageHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Counter[str]()

    def slowly(*_: object) -> dict[str, object]:
        made["documents"] += 1
        host.now_s += 3.0
        return {}

    host.now_s += 60.0
    monkeypatch.setattr(page_app, "fleet_document", slowly)
    monkeypatch.setattr(time, "thread_time", lambda: host.now_s)
    for _ in range(5):
        host.view = FleetView()
        host.get("/state")
        host.now_s += 9.0
    # Not 9, 18 and 27 s after it: a tenth of the time is what three seconds may take.
    assert made["documents"] == 2
    host.now_s += 60.0


def test_what_could_not_be_made_is_made_the_next_time(
    host: PageHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> dict[str, object]:
        raise StoreError("the store is away")

    host.now_s += 60.0
    host.do(lambda: host.state.set_model(served_model("new")))
    with monkeypatch.context() as away:
        away.setattr(page_app, "fleet_document", fails)
        assert host.get("/state")[0] == 503
    host.now_s += 60.0
    assert "new" in [each["name"] for each in host.get("/state")[2]["models"]]


def test_what_is_shown_of_all_models_asks_nothing_of_the_store(
    host: PageHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ObstoreArtifactStore, "list", lambda _, prefix: asked.append(prefix))
    monkeypatch.setattr(ObstoreArtifactStore, "read", lambda _, key: asked.append(key))
    for number in range(3):
        host.now_s += 60.0
        host.do(lambda name=f"n{number}": host.state.set_model(served_model(name)))
        assert host.get("/state")[0] == 200
    assert asked == []


def test_news_are_read_each_nine_seconds_and_followed(host: PageHost) -> None:
    position = EventPosition()

    def happen(why: str) -> None:
        nonlocal position
        event = Event(at=world.AT, kind=EventKind.MODEL_PUBLISHED, model="m", version=1, why=why)
        position = host.registry.append_event(event, position) or position

    def read(after_s: float) -> list[str]:
        host.now_s += after_s
        return [event["why"] for event in host.get("/news")[2]["events"]]

    assert read(60.0) == []
    happen("first")
    assert read(5.0) == []
    assert read(5.0) == ["first"]
    happen("second")
    assert read(10.0) == ["first", "second"]


def test_a_fleet_that_was_not_seen_yet_is_said_to_be_so(tmp_path: Path) -> None:
    app = PageApp(
        world.registry_with_model(tmp_path),
        lambda: (None, None),
        lambda: 0.0,
        FleetTokens(None, given=TOKEN),
    )
    started: list[str] = []
    environ = {"PATH_INFO": "/state", "HTTP_AUTHORIZATION": f"Bearer {page_token(TOKEN)}"}
    app(environ, lambda status, _: started.append(status))  # type: ignore[arg-type, return-value]
    assert started == ["503 Service Unavailable"]
