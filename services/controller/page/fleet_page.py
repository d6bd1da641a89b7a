"""What the page is told: made in threads while somebody looks, at most once a second."""

import asyncio
import gzip
import hashlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from services.contracts.errors import NotFoundError, NotReadyError
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.build.build_view import FleetView
from services.controller.explain.why_cases import explained_cases
from services.controller.metrics.build_metrics import LatestView
from services.controller.page.background_reads import BackgroundReads, Reads
from services.controller.page.fleet_rows import fleet_document
from services.pb import fleet_v1_pb2 as fleet

# With thousands of models it takes long: then it may take a tenth of all time.
_MADE_AGAIN_S: Final = 1.0
_MAX_SHARE: Final = 0.1
_NUM_EVENTS: Final = 50


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The whole fleet at one moment.

    Attributes:
        body: JSON, compressed by gzip.
        tag: differs with the body.
        age_s: since the controller last looked at store and fleet.
    """

    body: bytes
    tag: str
    age_s: float


class FleetPage:
    """Answers the page's questions; safe to share between threads, and not for the event loop."""

    def __init__(
        self,
        registry: Registry,
        state: FleetState,
        latest: LatestView,
        last_sync_s: Callable[[], float],
        *,
        answer_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet; to be made in the event loop that owns the state.

        Args:
            registry: for what is shown of one model.
            state: of the fleet.
            latest: what the build loop read last; must not block.
            last_sync_s: when the controller last looked at store and fleet, in seconds of `clock`.
            answer_s: how long the event loop may take to answer.
            clock: monotonic seconds.
        """
        self._registry = registry
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._latest = latest
        self._last_sync_s = last_sync_s
        self._answer_s = answer_s
        self._clock = clock
        self._reads = BackgroundReads(registry, latest)
        self._lock = threading.Lock()
        self._due_s = float("-inf")
        self._snapshot: fleet.FleetSnapshot | None = None
        self._seen: tuple[fleet.FleetSnapshot, FleetView | None, Reads] | None = None
        self._body = b""
        self._tag = ""

    def overview(self) -> Overview:
        """All models; raises NotReadyError when the controller's event loop hangs."""
        with self._lock:
            now_s = self._clock()
            if now_s >= self._due_s:
                self._look(now_s)
                ended_s = self._clock()
                self._due_s = ended_s + max(_MADE_AGAIN_S, (ended_s - now_s) / _MAX_SHARE)
            age_s = max(now_s - self._last_sync_s(), 0.0)
            return Overview(body=self._body, tag=self._tag, age_s=age_s)

    def model(self, name: str, version: int) -> bytes:
        """One model version as `smelt why` and `smelt events` have it: JSON, compressed.

        Raises:
            NotFoundError: the fleet has no such version.
            NotReadyError: the controller's event loop hangs.
            StoreError: the store cannot be read.
        """
        with self._lock:
            snapshot = self._newest()
        # Names of the fleet alone: what a request names becomes a key of the store.
        if not any((each.name, each.version) == (name, version) for each in snapshot.models):
            raise NotFoundError(f"this fleet does not serve model '{name}' version {version}")
        explained = self._registry.model_version(name, version)
        cases = explained_cases(self._registry, explained, "", snapshot, snapshot.store_url)
        events = [each for each in self._reads.shown.events if each["model"] in ("", name)]
        return _compressed({"generations": list(cases), "events": events[-_NUM_EVENTS:]})

    def _look(self, now_s: float) -> None:
        """Make the body again if anything that it shows is another."""
        snapshot = self._newest()
        self._reads.refresh(snapshot.metrics_addresses, now_s)
        latest = self._latest()
        seen = (snapshot, latest[0] if latest else None, self._reads.shown)
        if self._seen and all(map(_is, seen, self._seen)):
            return
        document = fleet_document(*seen[:2])
        reads = self._reads.shown
        for model in document["models"]:
            model["rates"] = reads.rates.get((model["name"], model["version"]))
        self._body = _compressed(document | {"events": reads.events[-_NUM_EVENTS:]})
        self._tag = hashlib.sha256(self._body).hexdigest()[:32]
        self._seen = seen

    def _newest(self) -> fleet.FleetSnapshot:
        """Taken in the event loop, which alone may touch the state, and only when it is new."""
        known = self._snapshot
        if known is not None and known.revision == self._state.revision:
            return known
        taken: Future[fleet.FleetSnapshot] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: taken.set_result(self._state.snapshot()))
            self._snapshot = taken.result(self._answer_s)
        # Of a loop that is closed, or does not come to it.
        except (RuntimeError, TimeoutError) as error:
            raise NotReadyError(
                f"the controller's event loop did not answer within {self._answer_s:g} s: it "
                "hangs or stops; see: smelt logs"
            ) from error
        return self._snapshot


def _is(one: object, other: object) -> bool:
    return one is other


def _compressed(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Without a time in its head: equal documents are equal bytes.
    return gzip.compress(text.encode(errors="replace"), compresslevel=5, mtime=0)
