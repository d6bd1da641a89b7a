"""Who builds a key now: a lease, so that no two workers build the same thing at once.

leases/<key digest>/<n>.json   BuildLease; the newest counts; never overwritten, nor removed
leases/controller/<n>.json     the same, of the one controller that has what is missing built

Taking, renewing and releasing a lease are one and the same step: to create the next number.
Of all who try, one succeeds, on every store that honours a conditional create; a holder whose
number was taken by another has lost its lease. The holder of the newest number removes the older
ones, those of workers that ended too, so that one or two are left of each key; a worker that finds
a higher number than the one that it created, because its own was removed, has lost its lease too.
No permission to change or delete is needed: without it the older ones stay.

A worker that is killed renews no more. On its own machine its process is seen to be gone; clocks
of two machines are not compared to find that out: a waiting worker measures on its own clock for
how long the newest number stands still. Only a lease whose written time lies `MAX_SKEW_S`
further back than it may is taken at once, so that a build does not wait for what died
yesterday. If clocks differ by more than that, a key may be
built twice: a waste, and no fault, because publishing is a conditional create too.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from services.contracts.model.document import Document
from services.contracts.process.host_boot import boot_id
from services.contracts.text.moments import utc_now

MAX_SKEW_S = 300.0
_PID_NAMESPACE = Path("/proc/self/ns/pid")


class BuildLease(Document):
    """One worker's claim on one key, and how far it is.

    Attributes:
        holder: of one attempt of one process; no other is equal.
        host, process_id: where that is, for people.
        pid_space: what the process id is unique in; "" when unknown.
        lease_s: seconds without a renewal after which others may take it.
        stage, stage_since: what it does, and since when.
        line: its last entry.
        taken_at, renewed_at: ISO 8601, UTC, by the holder's clock.
        is_released: it is free again.
    """

    holder: str
    host: str
    process_id: int
    pid_space: str = ""
    lease_s: float
    stage: str = ""
    stage_since: str
    line: str = ""
    taken_at: str
    renewed_at: str
    is_released: bool = False

    @property
    def holder_process(self) -> str:
        """Who holds it, for people."""
        return f"{self.host} (process {self.process_id})"

    @property
    def holder_words(self) -> str:
        """Who holds it since when, for people."""
        return f"{self.holder_process} since {self.taken_at}"

    def has_ended_here(self) -> bool:
        """Whether its holder was a process of this machine that is gone: killed, in most cases."""
        if not self.pid_space or self.pid_space != pid_space():
            return False
        try:
            os.kill(self.process_id, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False  # another user's
        return False

    def is_long_expired(self, now: datetime) -> bool:
        """Whether it expired by any clock."""
        age_s = (now - datetime.fromisoformat(self.renewed_at)).total_seconds()
        return age_s > self.lease_s + MAX_SKEW_S


@dataclass(frozen=True, kw_only=True)
class LeaseRevision:
    """The newest lease of a key.

    Attributes:
        number: of its document; 0 when there never was one.
        lease: None when there is none, or when it is of a Smelt that this one cannot read.
    """

    number: int = 0
    lease: BuildLease | None = None

    @property
    def is_free(self) -> bool:
        """Whether it is free, whatever the time is."""
        return self.number == 0 or (self.lease is not None and self.lease.is_released)


class LeaseWatch:
    """Finds out by this process's own clock whether the holder of a lease is gone."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was seen yet.

        Args:
            lease_s: how long a lease is waited for that cannot be read.
            clock: seconds that never go back.
        """
        self._lease_s = lease_s
        self._clock = clock
        self._number = 0
        self._seen_at = clock()

    def is_takeable(self, revision: LeaseRevision) -> bool:
        """Whether this revision is free, or was not renewed for as long as it holds."""
        if revision.is_free:
            return True
        now_s = self._clock()
        lease = revision.lease
        if revision.number != self._number:
            self._number = revision.number
            self._seen_at = now_s
        lease_s = lease.lease_s if lease else self._lease_s
        if now_s - self._seen_at > lease_s:
            return True
        return lease is not None and (lease.is_long_expired(utc_now()) or lease.has_ended_here())


def pid_space() -> str:
    """Names what process ids are unique in: one boot of one machine, and a PID namespace of it."""
    try:
        return f"{boot_id()} {_PID_NAMESPACE.readlink()}"
    except OSError:
        return ""
