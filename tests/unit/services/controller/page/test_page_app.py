"""The page's port: who may read, what each answer forbids a browser, and what is asked twice."""

import base64
import hashlib
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest

from services.contracts.security.fleet_security import page_token
from services.pb import fleet_v1_pb2 as fleet
from tests.unit.services.controller.page.page_host import (
    TOKEN,
    PageHost,
    page_host,
    report,
    served_model,
)

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\u202e"
ASKED = "/model?name=m&version=1"


@pytest.mark.parametrize("path", ["/state", ASKED])
@pytest.mark.parametrize(
    "header", ["", "Bearer ", "Bearer x", f"Bearer {TOKEN}", page_token(TOKEN), "Bearer \xe4"]
)
def test_only_the_pages_own_token_opens_it(host: PageHost, path: str, header: str) -> None:
    """The fleet's token can attach replicas: it has no business in a browser."""
    status, headers, body = host.get(path, Authorization=header)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "smelt status" in body["error"]
    assert host.get(path)[0] == 200


def test_a_token_in_the_address_is_none(host: PageHost) -> None:
    assert host.get(f"/state?token={page_token(TOKEN)}", Authorization="")[0] == 401


def test_a_fleet_without_a_token_shows_nothing(tmp_path: Path) -> None:
    with page_host(tmp_path, token="") as host:
        status, _, body = host.get("/state")
        assert status == 403
        assert "SMELT_CONTROLLER_FLEET_TOKEN_FILE" in body["error"]


@pytest.mark.parametrize("path", ["/", "/state", ASKED, "/nothing"])
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


def test_whoever_does_not_take_gzip_gets_text(host: PageHost) -> None:
    _, headers, body = host.get("/state", Accept_Encoding="identity")
    assert headers["Content-Encoding"] is None
    assert body["store"] == "/store"


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
        ("/model?name=m", 400),
        ("/model?name=m&version=1e3", 400),
        ("/model?name=m&version=" + "9" * 400, 400),
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
