"""Keeps the objects of one kind known: lists them, then follows their changes.

A stream that the server ends is taken up again after the last change that was seen. After one
that breaks, and every `resync_s` in any case, everything is listed anew: what was known before a
break may be gone, and a half-open connection, which has no events, costs one such period.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import anyio
from lightkube import AsyncClient

from services.contracts.errors import SmeltError
from services.contracts.process.backoff import wait_after
from services.controller.platform.kubernetes.client import NOT_FOUND, explained, status_code

logger = logging.getLogger(__name__)

_ReadT = TypeVar("_ReadT")


@dataclass(frozen=True, kw_only=True)
class WatchTiming:
    """How long to wait for what.

    Attributes:
        settle_s: a change of a node counts once it has lasted so long.
        resync_s: after so long everything is listed anew.
        lost_after_s: without contact for so long, what is known is called stale. Three
            resyncs: an API server that is being upgraded is away for less.
        retry_s: wait after a first failure; doubles with each further one.
        retry_max_s: and never exceeds this.
    """

    settle_s: float = 10.0
    resync_s: float = 300.0
    lost_after_s: float = 900.0
    retry_s: float = 1.0
    retry_max_s: float = 30.0


@dataclass(frozen=True, kw_only=True)
class WatchedKind:
    """What to watch.

    Attributes:
        resource: lightkube's class of it.
        namespace: None for objects of the whole cluster.
        is_optional: the cluster may not have this kind at all.
    """

    resource: Any
    namespace: str | None = None
    is_optional: bool = False


class ObjectWatch(Generic[_ReadT]):
    """One kind of object of one cluster; `run` it in the event loop it was made for."""

    def __init__(
        self,
        client: AsyncClient,
        kind: WatchedKind,
        timing: WatchTiming,
        read: Callable[[dict[str, Any]], _ReadT | None],
        on_change: Callable[[dict[str, _ReadT]], None],
    ) -> None:
        """Nothing is asked yet.

        Args:
            client: of the cluster.
            kind: what to watch.
            timing: waits.
            read: what is kept of an object; None when it does not matter. Small, and equal as
                long as nothing of interest differs: a kubelet reports on its node all the time.
            on_change: gets all that is kept, by name, first and whenever it differs.
        """
        self._client = client
        self._kind = kind
        self._timing = timing
        self._read = read
        self._on_change = on_change
        self._kept: dict[str, _ReadT] | None = None
        self._version: str | None = None
        self._doing = "list"
        self._num_failures = 0
        self._following_since_s = time.monotonic()
        self.last_error: SmeltError | None = None
        self.contact_s: float | None = None

    async def run(self) -> None:
        """List and follow until cancelled; whatever fails is logged and tried again."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._follow()
            except Exception as error:
                # Everything: if this thread ended here, the nodes would never change again.
                # A server that cannot be reached sends no event when it is there again.
                await asyncio.sleep(self._note(error))

    async def _list(self) -> None:
        self._doing = "list"
        listed = self._client.list(self._kind.resource, namespace=self._kind.namespace)
        kept: dict[str, _ReadT] = {}
        try:
            async for found in listed:
                self._keep(kept, found)
            self._version = listed.resourceVersion
        except Exception as error:
            if not (self._kind.is_optional and status_code(error) == NOT_FOUND):
                raise
        self._take(kept)

    async def _follow(self) -> None:
        """Take changes until the resync is due."""
        # The HTTP library keeps anyio's cancellation from its own clean-up, and no other: a
        # connection that asyncio.timeout met while it was closing stayed open.
        with anyio.move_on_after(self._timing.resync_s):
            if self._version is None:
                # Not installed here; it may be at the next resync.
                await anyio.sleep_forever()
            await self._take_changes()
        self._version = None
        self._num_failures = 0

    async def _take_changes(self) -> None:
        self._doing = "watch"
        self._following_since_s = time.monotonic()
        changes = self._client.watch(
            self._kind.resource, namespace=self._kind.namespace, resource_version=self._version
        )
        # Closed here and now, else its connection stays open until the garbage collector runs.
        async with contextlib.aclosing(cast("AsyncGenerator[Any, None]", changes)) as stream:
            async for change, found in stream:
                # A copy: `_take` compares it with the former one, which the listener may hold.
                kept = dict(self._kept or {})
                if change == "DELETED":
                    kept.pop(found.metadata.name, None)
                else:
                    self._keep(kept, found)
                # Of objects that are not kept too: the server soon drops old versions, and
                # answers 410 (Gone) to a watch that asks for what followed them.
                self._version = found.metadata.resourceVersion
                self._num_failures = 0
                self._take(kept)

    def _keep(self, kept: dict[str, _ReadT], found: Any) -> None:
        name = found.metadata.name
        if (read := self._read(found.to_dict())) is None:
            kept.pop(name, None)
        else:
            kept[name] = read

    def _take(self, kept: dict[str, _ReadT]) -> None:
        self.contact_s = time.monotonic()
        if kept != self._kept:
            self._kept = kept
            self._on_change(kept)
        self.last_error = None

    def _note(self, error: Exception) -> float:
        """Log a failure; seconds to wait before the next try."""
        self._version = None
        if self._doing == "watch":
            # One that held for longer than any pause was no failure in a row.
            lasted_s = time.monotonic() - self._following_since_s
            if lasted_s >= self._timing.retry_max_s:
                self._num_failures = 0
        self._num_failures += 1
        pause_s = wait_after(
            self._num_failures, first_s=self._timing.retry_s, most_s=self._timing.retry_max_s
        )
        self.last_error = explained(error, self._doing, self._kind.resource, self._kind.namespace)
        logger.warning("%s; trying again in %.1f s", self.last_error, pause_s)
        return pause_s
