"""The page over HTTP: one file for everybody, and the fleet for who has the page's token.

GET /                              the page itself; it knows nothing of the fleet
GET /state                         all models; If-None-Match saves the answer
GET /model?name=NAME&version=N     one model version: why it serves as it does, and its events
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from services.contracts.errors import NotFoundError, SmeltError
from services.contracts.security.fleet_security import FleetTokens
from services.controller.page.fleet_page import FleetPage

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Headers = list[tuple[str, str]]
_JSON: Final = ("Content-Type", "application/json; charset=utf-8")
_GUARDS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_UNGUARDED: Final = (
    "the page is for fleets with a token, and this controller has none; make one by `openssl rand "
    "-hex 32` and name its file: SMELT_CONTROLLER_FLEET_TOKEN_FILE (`smelt up` does)"
)
_REFUSED: Final = "the page's token is wanted: smelt status prints the address with it"


class PageApp:
    """A WSGI application; calls may come from many threads."""

    def __init__(self, page: FleetPage, tokens: FleetTokens | None) -> None:
        """Serve a page.

        Args:
            page: answers what it asks.
            tokens: of the fleet, of which the page's are made; None refuses everybody.
        """
        self._page = page
        self._tokens = tokens
        html = (files("services.controller.page") / "page.html").read_text("utf-8")
        self._html = gzip.compress(html.encode(), mtime=0)
        self._html_headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Security-Policy", _policy(html)),
        ]

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request."""
        status, headers, body = self._answer(environ)
        if body and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers = [*headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        elif body:
            body = gzip.decompress(body)
        length = ("Content-Length", str(len(body)))
        start_response(status, [*_GUARDS, *headers, length])
        return [body]

    def _answer(self, environ: "WSGIEnvironment") -> tuple[str, Headers, bytes]:
        path = environ["PATH_INFO"]
        if path not in ("/", "/state", "/model"):
            return _fault("404 Not Found", "nothing is here; the page is at /, metrics at /metrics")
        if environ["REQUEST_METHOD"] != "GET":
            return _fault("405 Method Not Allowed", "the page is only read: GET")
        if path == "/":
            return "200 OK", self._html_headers, self._html
        if self._tokens is None:
            return _fault("403 Forbidden", _UNGUARDED)
        if not self._tokens.admit_to_page(environ.get("HTTP_AUTHORIZATION", "")):
            return _fault("401 Unauthorized", _REFUSED, [("WWW-Authenticate", "Bearer")])
        try:
            return self._state(environ) if path == "/state" else self._model(environ)
        except NotFoundError as error:
            return _fault("404 Not Found", str(error))
        except SmeltError as error:
            return _fault("503 Service Unavailable", str(error))

    def _state(self, environ: "WSGIEnvironment") -> tuple[str, Headers, bytes]:
        overview = self._page.overview()
        tag = f'"{overview.tag}"'
        # Not in the body, which would be another one each time.
        headers = [("ETag", tag), ("Smelt-Age", f"{overview.age_s:.1f}")]
        if environ.get("HTTP_IF_NONE_MATCH") == tag:
            return "304 Not Modified", headers, b""
        return "200 OK", [_JSON, *headers], overview.body

    def _model(self, environ: "WSGIEnvironment") -> tuple[str, Headers, bytes]:
        asked = parse_qs(environ.get("QUERY_STRING", ""))
        name = asked.get("name", [""])[0]
        version = asked.get("version", [""])[0]
        if not name or not re.fullmatch(r"[0-9]{1,18}", version):
            return _fault("400 Bad Request", "expected /model?name=NAME&version=NUMBER")
        return "200 OK", [_JSON], self._page.model(name, int(version))


def _fault(
    status: str, words: str, more: Iterable[tuple[str, str]] = ()
) -> tuple[str, Headers, bytes]:
    body = json.dumps({"error": words}).encode()
    return status, [_JSON, *more], gzip.compress(body, mtime=0)


def _policy(html: str) -> str:
    """Nothing from anywhere, but the very script and style of this file and this port's answers."""
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
    }
    return (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src "
        f"'sha256-{hashes['style']}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
