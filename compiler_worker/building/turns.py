"""Whose turn it is to build a key: this worker's, or another one's whose result is awaited.

A worker goes on with other keys before it waits for one that is being built elsewhere.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from compiler_worker.children.requests import ChildEvent, Stage
from compiler_worker.worker_context import WorkerContext
from services.contracts.builds.build_key import BuildKey
from services.contracts.builds.build_lease import BuildLease, LeaseWatch
from services.contracts.builds.build_record import BuildRecord
from services.contracts.builds.held_lease import HeldLease, take_lease
from services.contracts.errors import NotFoundError
from services.contracts.model.manifest import PublishedEngine

# How often waiting workers read the store, which sends no notifications.
_POLL_S = 1.0
_POLLS_PER_LEASE = 4


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What is to be done about one key; exactly one of the three is there.

    Attributes:
        lease: it is ours to build; enter the lease first.
        published: it is there.
        record: how the attempt of another worker ended that this one waited for.
    """

    key: BuildKey
    lease: HeldLease | None = None
    published: PublishedEngine | None = None
    record: BuildRecord | None = None


def leased(worker: WorkerContext, lease: HeldLease) -> WorkerContext:
    """The worker for work under a lease: it shows the progress, and its loss ends the work."""

    def report(key: BuildKey, event: ChildEvent) -> None:
        lease.show_progress(stage=event.stage or "", line=event.line)
        worker.on_progress(key, event)

    return replace(worker, on_progress=report, stop_reason=lease.lost_to)


@contextmanager
def awaited_lease(digest: str, key: BuildKey, worker: WorkerContext) -> Iterator[HeldLease]:
    """Hold the lease of something that is not a build, after its present holder.

    Args:
        digest: what the lease is of.
        key: as which this is shown while it waits.
        worker: whose store it is.
    """
    registry = worker.registry
    lease_s = worker.settings.build_lease_s
    watch = LeaseWatch(lease_s)
    reported = ""
    while True:
        found = registry.lease(digest)
        lease = take_lease(registry, digest, found, lease_s) if watch.is_takeable(found) else None
        if lease is not None:
            break
        if not reported:
            reported = f"another worker holds the lease: {_holder_words(found.lease)}"
            worker.on_progress(key, ChildEvent(stage=Stage.WAIT, line=reported))
        _pause(lease_s)
    with lease:
        yield lease


class Turns:
    """Gives the keys one after another, those that others build last."""

    def __init__(self, keys: Iterable[BuildKey], worker: WorkerContext) -> None:
        self._worker = worker
        self._queue = deque(_Queued(key, worker) for key in keys)

    def __iter__(self) -> Iterator[Turn]:
        num_waiting = 0
        while self._queue:
            queued = self._queue.popleft()
            turn = queued.turn()
            if turn is not None:
                num_waiting = 0
                yield turn
                continue
            self._queue.append(queued)
            num_waiting += 1
            if num_waiting >= len(self._queue):
                # Every key that is left is another worker's.
                _pause(self._worker.settings.build_lease_s)

    def again(self, key: BuildKey) -> None:
        """Wait for a key whose lease was lost to another worker."""
        self._queue.append(_Queued(key, self._worker))


class _Queued:
    """One key, and what was seen of those who build it."""

    def __init__(self, key: BuildKey, worker: WorkerContext) -> None:
        self._key = key
        self._worker = worker
        self._digest = key.digest()
        self._watch = LeaseWatch(worker.settings.build_lease_s)
        self._waited_for: BuildLease | None = None
        self._reported = ""

    def turn(self) -> Turn | None:
        """What is to be done now; None when another worker has its lease."""
        if (engine := self._published()) is not None:
            return Turn(key=self._key, published=engine)
        registry = self._worker.registry
        found = registry.lease(self._digest)
        if not self._watch.is_takeable(found):
            self._wait_for(found.lease)
            return None
        # One that was not released has expired: its worker is gone, and another has to finish.
        if found.is_free and (record := self._awaited_record()) is not None:
            return Turn(key=self._key, record=record)
        lease = take_lease(registry, self._digest, found, self._worker.settings.build_lease_s)
        if lease is None:
            return None
        # The lease before this one may have ended with the engine that we are about to build.
        if (engine := self._published()) is not None:
            with lease:
                return Turn(key=self._key, published=engine)
        return Turn(key=self._key, lease=lease)

    def _published(self) -> PublishedEngine | None:
        try:
            return self._worker.registry.engine_of(self._key)
        except NotFoundError:
            return None

    def _awaited_record(self) -> BuildRecord | None:
        """How the attempt ended that was waited for; None when it left no account."""
        if self._waited_for is None:
            return None
        records = self._worker.registry.build_records(self._digest)
        # Both times are of its own clock.
        if records and records[-1].started_at >= self._waited_for.taken_at:
            return records[-1]
        return None

    def _wait_for(self, lease: BuildLease | None) -> None:
        self._waited_for = lease or self._waited_for
        words = f"another worker builds it: {_holder_words(lease)}"
        if lease is not None and lease.stage:
            words += f", stage {lease.stage} since {lease.stage_since}"
        if words != self._reported:
            self._reported = words
            self._worker.on_progress(self._key, ChildEvent(stage=Stage.WAIT, line=words))


def _holder_words(lease: BuildLease | None) -> str:
    return lease.holder_words if lease else "a worker of another version of Smelt"


def _pause(lease_s: float) -> None:
    """Before the store is read again."""
    time.sleep(min(_POLL_S, lease_s / _POLLS_PER_LEASE))  # object stores send no notifications
