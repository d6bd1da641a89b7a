"""Requests that wait in the gateway: for a replica, or, as parts of larger ones, for room."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from services.contracts.errors import (
    DeadlineExceededError,
    NotReadyError,
    OverloadedError,
    SmeltError,
)
from services.gateway.pipeline.inference import InferenceCall
from services.gateway.pipeline.request_head import RequestHead
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.pool import Pool
from services.telemetry import catalog
from services.telemetry.recorder import Recorder


class HoldLimits(NamedTuple):
    """What may wait.

    Attributes:
        max_s: seconds that one request waits in all; 0 has none wait.
        max_requests: that wait at a time.
        max_bytes: of all that wait; a single one may have more.
    """

    max_s: float
    max_requests: int
    max_bytes: int


class HeldRequests:
    """Holds requests of versions that served before and are to serve again.

    All others are refused at once: a version that never served may never do so. On-demand models
    are loaded for the first request as well.

    Attributes:
        asked_for: on-demand models that requests found without a replica, until that is reported.
        is_asked: is set when one is added.
        fault: why such reports do not reach the controller; "" when they do.
    """

    def __init__(self, endpoints: EndpointSet, recorder: Recorder, limits: HoldLimits) -> None:
        """Nothing waits yet.

        Args:
            endpoints: has the routing table, and says when it changes.
            recorder: takes how many wait, and how long they did.
            limits: of what waits.
        """
        self._endpoints = endpoints
        self._recorder = recorder
        self._limits = limits
        self.asked_for: set[str] = set()
        self.is_asked = asyncio.Event()
        self.fault = ""
        self._num_bytes = 0
        self._num_held: defaultdict[tuple[str, str], int] = defaultdict(int)

    def awaited(self, head: RequestHead) -> int | None:
        """The version whose replica a request may wait for; None when it is refused at once."""
        if not self._limits.max_s:
            return None
        return self._endpoints.table.returning(head.model_name, head.model_version)

    def ask(self, head: RequestHead) -> int | None:
        """As `awaited`, for a request that found no replica; has an on-demand model loaded."""
        table = self._endpoints.table
        model = head.model_name
        version = table.returning(model, head.model_version)
        if version is not None and model in table.view.on_demand:
            self._recorder.count(catalog.ON_DEMAND_MISSES, model=model, version=str(version))
            # One report of all that ask for it.
            if model not in self.asked_for:
                self.asked_for.add(model)
                self.is_asked.set()
        return self.awaited(head)

    async def pool(self, call: InferenceCall, head: RequestHead, find: Callable[[], Pool]) -> Pool:
        """What `find` finds, now or after a change of the routing table.

        Args:
            call: with its deadline; the time that it waits is noted there.
            head: whom it is for.
            find: looks at the table of now; raises NotReadyError where no replica can be asked.

        Raises:
            NotReadyError: no replica can be asked, and it may not wait, or no longer.
            DeadlineExceededError: its deadline passed while it waited.
            SmeltError: what `find` raises else, as once the model is removed.
        """
        try:
            return find()
        except NotReadyError as error:
            if self.awaited(head) is None:
                raise
            # Its text alone, as its traceback holds the request.
            why = str(error)
        self._check_room(why, len(call.body))
        with self._holding(call):
            return await self._wait(call, head, find, why)

    async def for_room(self, call: InferenceCall, refusal: OverloadedError) -> None:
        """Return when a part of a request may be sent again.

        Args:
            call: the part.
            refusal: what it was refused with.

        Raises:
            OverloadedError: that, as it may not wait, or no longer.
        """
        wait_s = refusal.retry_after_s
        if call.held_s + wait_s >= self._limits.max_s or self._is_full(len(call.body)):
            raise refusal
        with self._holding(call):
            # As the refusal asks: a replica sends no word when its queue has room.
            await asyncio.sleep(wait_s)

    @contextmanager
    def _holding(self, call: InferenceCall) -> Iterator[None]:
        """Count a request among those that wait, and how long it did."""
        key = call.model, call.version
        begin_s = time.monotonic()
        outcome = "cancelled"
        self._add(key, 1, len(call.body))
        try:
            yield
            outcome = "sent"
        except SmeltError:
            outcome = "refused"
            raise
        finally:
            self._add(key, -1, -len(call.body))
            held_s = time.monotonic() - begin_s
            call.held_s += held_s
            call.waited_s += held_s
            # The server may have cancelled it at its deadline before its own timer.
            outcome = "expired" if call.remaining_s() == 0.0 else outcome
            self._observe(key, held_s, outcome)

    async def _wait(
        self, call: InferenceCall, head: RequestHead, find: Callable[[], Pool], why: str
    ) -> Pool:
        left_s = self._limits.max_s - call.held_s
        remaining_s = call.remaining_s()
        is_own = remaining_s is None or left_s < remaining_s
        try:
            async with asyncio.timeout(left_s if is_own else remaining_s):
                while True:
                    # All wake at each change, and go on in the order in which they came.
                    await self._endpoints.changed.wait()
                    try:
                        return find()
                    except NotReadyError as refusal:
                        why = str(refusal)
                        if self.awaited(head) is None:
                            raise
        except TimeoutError:
            if self.fault and head.model_name in self._endpoints.table.view.on_demand:
                why = f"{why}; {self.fault}"
            if is_own:
                fix = "retry later or raise SMELT_GATEWAY_HOLD_S"
                waited = f"the request waited {self._limits.max_s:g} s for one"
                raise NotReadyError(f"{why}; {waited}; {fix}") from None
            waited = "the deadline passed while the request waited for one"
            raise DeadlineExceededError(f"{why}; {waited}") from None

    def _check_room(self, why: str, num_bytes: int) -> None:
        """Raise NotReadyError when too many wait already."""
        limits = self._limits
        if self._is_full(num_bytes):
            num = sum(self._num_held.values())
            raise NotReadyError(
                f"{why}; {num} requests of {self._num_bytes} bytes wait on this gateway, its bounds"
                f" are {limits.max_requests} and {limits.max_bytes}; retry later or raise "
                "SMELT_GATEWAY_MAX_IN_FLIGHT, of which that is half, or "
                "SMELT_GATEWAY_MAX_UPLOAD_BYTES, of which it is a quarter"
            )

    def _is_full(self, num_bytes: int) -> bool:
        is_over = self._num_bytes and self._num_bytes + num_bytes > self._limits.max_bytes
        return bool(is_over) or sum(self._num_held.values()) >= self._limits.max_requests

    def _add(self, key: tuple[str, str], num: int, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._num_held[key] += num
        held = self._num_held[key]
        if not held:
            del self._num_held[key]
        self._recorder.set(catalog.REQUESTS_HELD, held, model=key[0], version=key[1])

    def _observe(self, key: tuple[str, str], held_s: float, outcome: str) -> None:
        labels = {"model": key[0], "version": key[1], "outcome": outcome}
        self._recorder.observe(catalog.HELD_DURATION, held_s, **labels)
