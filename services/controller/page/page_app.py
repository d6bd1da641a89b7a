"""The page over HTTP: one file for everybody, and the fleet for who has the page's token.

GET /                              the page itself; it knows nothing of the fleet
GET /state                         all models; If-None-Match saves the answer
GET /news                          the newest events, and requests of the last minute; likewise
GET /model?name=NAME&version=N     why one model version serves as it does
"""

import base64
import gzip
import hashlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from services.contracts.errors import NotFoundError, NotReadyError, SmeltError
from services.contracts.events import Event, EventPosition
from services.contracts.registry.registry import Registry
from services.contracts.security.fleet_security import FleetTokens, page_token
from services.controller.build.build_view import FleetView
from services.controller.explain.why_cases import explained_cases
from services.controller.page.fleet_rows import Measured, fleet_document
from services.controller.page.live_rates import LiveRates
from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# The fleet's state and what was read last of the store; None before, and the latter in standby.
Seen = tuple[fleet.FleetSnapshot | None, tuple[FleetView, Registry] | None]
_Answer = tuple[str, list[tuple[str, str]], bytes]
_GUARDS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Content-Encoding", "gzip"),
)
_UNGUARDED: Final = (
    "the page is for fleets with a token, and this controller has none; make one by `openssl rand "
    "-hex 32` and name its file: SMELT_CONTROLLER_FLEET_TOKEN_FILE (`smelt up` does)"
)
_NUM_EVENTS: Final = 200
_REFUSED: Final = "the page's token is wanted: smelt status prints the address with it"
# Ray's agents renew their pages each 10 s.
_NEWS_AGAIN_S: Final = 9.0
# With thousands of models it takes long: then it may take a tenth of all time.
_AGAIN_S: Final = 1.0
_MAX_SHARE: Final = 0.1


class PageApp:
    """A WSGI application, whose calls come from many threads and none from the event loop."""

    def __init__(
        self,
        registry: Registry,
        seen: Callable[[], Seen],
        last_sync_s: Callable[[], float],
        tokens: FleetTokens | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet.

        Args:
            registry: for events, and for what is shown of one model.
            seen: must not block.
            last_sync_s: when the controller last looked at store and fleet, in seconds of `clock`.
            tokens: of the fleet, of which the page's are made; None refuses everybody.
            clock: monotonic seconds.
        """
        self._registry = registry
        self._seen = seen
        self._last_sync_s = last_sync_s
        self._tokens = tokens
        self._clock = clock
        self._kept = {
            "/state": _Kept(self._make_state, _AGAIN_S, clock),
            "/news": _Kept(self._make_news, _NEWS_AGAIN_S, clock),
        }
        self._shown: Seen = (None, None)
        self._measured: Measured = {}
        self._events: deque[tuple[EventPosition, Event]] = deque(maxlen=_NUM_EVENTS)
        self._rates = LiveRates()
        html = (files("services.controller.page") / "page.html").read_text("utf-8")
        policy = ("Content-Security-Policy", _policy(html))
        self._html = ("200 OK", [_typed("text/html"), policy], _compressed(html))

    def __call__(
        self, request: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request; whatever a browser takes, it takes gzip."""
        status, headers, body = self._answer(request)
        start_response(status, [*_GUARDS, *headers, ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, request: "WSGIEnvironment") -> _Answer:
        path = request["PATH_INFO"]
        if path == "/":
            return self._html
        if path not in (*self._kept, "/model"):
            return _fault("404 Not Found", "nothing is here; the page is at /, metrics at /metrics")
        if self._tokens is None:
            return _fault("403 Forbidden", _UNGUARDED)
        if not self._tokens.admit(request.get("HTTP_AUTHORIZATION", ""), page_token):
            return _fault("401 Unauthorized", _REFUSED)
        try:
            is_kept = path in self._kept
            return self._answer_kept(self._kept[path], request) if is_kept else self._model(request)
        except NotFoundError as error:
            return _fault("404 Not Found", str(error))
        except SmeltError as error:
            return _fault("503 Service Unavailable", str(error))

    def _answer_kept(self, kept: "_Kept", request: "WSGIEnvironment") -> _Answer:
        body, tag = kept.get()
        # Not in the body, which would be another one each time.
        age = ("Smelt-Age", f"{max(self._clock() - self._last_sync_s(), 0.0):.1f}")
        if request.get("HTTP_IF_NONE_MATCH") == tag:
            return "304 Not Modified", [("ETag", tag), age], b""
        return "200 OK", [_typed("application/json"), ("ETag", tag), age], body

    def _model(self, request: "WSGIEnvironment") -> _Answer:
        asked = parse_qs(request.get("QUERY_STRING", ""))
        wanted = (asked.get("name", [""])[0], asked.get("version", [""])[0])
        snapshot = self._snapshot()
        # Names of the fleet alone: what a request names becomes a key of the store.
        for model in snapshot.models:
            if (model.name, str(model.version)) == wanted:
                if model.external_json:
                    return "200 OK", [_typed("application/json")], _json({"generations": []})
                explained = self._registry.model_version(model.name, model.version)
                url = snapshot.store_url
                cases = list(explained_cases(self._registry, explained, "", snapshot, url))
                return "200 OK", [_typed("application/json")], _json({"generations": cases})
        raise NotFoundError(f"this fleet has no model '{wanted[0]}' of version '{wanted[1]}'")

    def _snapshot(self) -> fleet.FleetSnapshot:
        return self._seen_now()[0]

    def _seen_now(self) -> tuple[fleet.FleetSnapshot, tuple[FleetView, Registry] | None]:
        snapshot, latest = self._seen()
        if snapshot is None:
            raise NotReadyError("the first sync is not complete yet; reload in a few seconds")
        return snapshot, latest

    def _make_state(self, before: bytes) -> bytes:
        seen = self._seen_now()
        if before and seen[0] is self._shown[0] and seen[1] is self._shown[1]:
            return before
        view = seen[1][0] if seen[1] else None
        made = _json(fleet_document(seen[0], view, self._measured))
        # Not earlier: what could not be made is made the next time.
        self._shown = seen
        return made

    def _make_news(self, _: bytes) -> bytes:
        snapshot, latest = self._seen_now()
        if self._events:
            # What was listed in the last pass is not listed again.
            moment = latest[1] if latest else self._registry
            self._events += moment.events_after(self._events[-1][0])
        else:
            self._events += self._registry.last_events(_NUM_EVENTS)
        events = [event.model_dump(mode="json") for _, event in self._events]
        rates = self._rates.look(snapshot.metrics_addresses, self._clock())
        return _json({"events": events, "rates": rates})


class _Kept:
    """An answer that is made at most so often, however many ask."""

    def __init__(
        self, make: Callable[[bytes], bytes], again_s: float, clock: Callable[[], float]
    ) -> None:
        """Make it with what was made before, of `clock`'s seconds so many apart at least."""
        self._make = make
        self._again_s = again_s
        self._clock = clock
        self._lock = threading.Lock()
        self._due_s = float("-inf")
        self._body = b""
        self._tag = ""

    def get(self) -> tuple[bytes, str]:
        """The answer and its tag; raises what making it does."""
        with self._lock:
            if self._clock() >= self._due_s:
                # Of the processor, not of waiting for a store or an agent.
                began_s = time.thread_time()
                self._body = self._make(self._body)
                self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
                took_s = time.thread_time() - began_s
                self._due_s = self._clock() + max(self._again_s, took_s / _MAX_SHARE)
            return self._body, self._tag


def _json(document: dict[str, Any]) -> bytes:
    return _compressed(json.dumps(document, separators=(",", ":")))


def _compressed(text: str) -> bytes:
    # Without a time in its head: equal documents are equal bytes.
    return gzip.compress(text.encode(), compresslevel=5, mtime=0)


def _typed(media_type: str) -> tuple[str, str]:
    return "Content-Type", f"{media_type}; charset=utf-8"


def _fault(status: str, words: str) -> _Answer:
    return status, [_typed("application/json")], _json({"error": words})


def _policy(html: str) -> str:
    """Nothing from anywhere, but the very script and style of this file and this port's answers."""
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
    }
    inline = "".join(f"{tag}-src 'sha256-{digest}'; " for tag, digest in hashes.items())
    forbidden = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {inline}connect-src 'self'; {forbidden}"
