"""A lease that this process holds, and its heartbeat: of a key that is built, or of a store."""

import logging
import os
import socket
import threading
import uuid
from types import TracebackType
from typing import Self

from services.contracts.builds.build_lease import BuildLease, LeaseRevision, pid_space
from services.contracts.errors import SmeltError, StoreError
from services.contracts.registry.builds import BuildRegistry
from services.contracts.text.moments import timestamp

logger = logging.getLogger(__name__)

# Two of three heartbeats may be lost.
_BEATS_PER_LEASE = 3
# A store that hangs must not keep a worker whose work is done.
_RELEASE_S = 60.0


class HeldLease:
    """A lease of this process, renewed in the background until the block ends.

    Not renewed in time, as after this process was suspended, it may be taken by another; then
    `lost_to` says so, and the build under it should stop.
    """

    def __init__(
        self,
        registry: BuildRegistry,
        key_digest: str,
        number: int,
        lease: BuildLease,
        kept_lease_s: float | None = None,
    ) -> None:
        """The lease is ours already; see `take_lease` for the arguments."""
        self._lease_s = lease.lease_s
        self._kept_lease_s = kept_lease_s or lease.lease_s
        self._registry = registry
        self._digest = key_digest
        self._number = number
        self._lease = lease
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = False
        self._lost_to = ""
        name = f"lease {key_digest[:12]}"
        self._thread = threading.Thread(target=self._beat, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def start(self) -> None:
        """Begin to renew it."""
        self._thread.start()

    def release(self, within_s: float = _RELEASE_S) -> None:
        """End the renewals and free it for others; blocks so long where the store hangs."""
        self._is_over = True
        self._wake.set()
        self._thread.join(within_s)

    def show_progress(self, *, stage: str = "", line: str = "") -> None:
        """Show in the lease how far the work is; a new stage at once, a line with the next beat."""
        changed = {"line": line}
        if stage:
            changed = {"stage": stage, "stage_since": timestamp(), "line": line}
        with self._lock:
            if stage or line:
                self._lease = self._lease.model_copy(update=changed)
        if stage:
            self._wake.set()

    def lost_to(self) -> str:
        """Which process took the lease; "" while it is ours."""
        return self._lost_to

    def _beat(self) -> None:
        while not self._is_over and not self._lost_to:
            self._wake.wait(self._lease.lease_s / _BEATS_PER_LEASE)
            self._wake.clear()
            if not self._is_over:
                self._renew(is_released=False)
        if not self._lost_to:
            self._renew(is_released=True)

    def _renew(self, *, is_released: bool) -> None:
        with self._lock:
            changed = {
                "lease_s": self._kept_lease_s if self._registry.keeps_leases else self._lease_s,
                "renewed_at": timestamp(),
                "is_released": is_released,
            }
            offer = self._lease.model_copy(update=changed)
        try:
            if self._registry.offer_lease(self._digest, self._number + 1, offer):
                self._number += 1
                return
            self._find_out()
        except SmeltError as error:
            # The next beat tries again; no other worker took it before that can be read.
            logger.warning("the lease of %s could not be renewed: %s", self._digest[:12], error)
        except Exception:
            # Whatever it is: beats that ended would do so in silence, and the work would go on.
            logger.exception("the lease of %s could not be renewed", self._digest[:12])

    def _find_out(self) -> None:
        """See whether another one took the lease, or only an answer to us was lost."""
        newest = self._registry.lease(self._digest)
        if newest.lease is not None and newest.lease.holder == self._lease.holder:
            self._number = newest.number
            return
        who = newest.lease.holder_words if newest.lease else "another worker"
        self._lost_to = f"the lease of this key was taken over by {who}"
        logger.warning("%s: %s", self._digest[:12], self._lost_to)


def take_lease(
    registry: BuildRegistry,
    key_digest: str,
    found: LeaseRevision,
    lease_s: float,
    kept_lease_s: float | None = None,
) -> HeldLease | None:
    """Take what was found to be free; None when another one was first.

    Args:
        registry: on the store.
        key_digest: what the lease is of.
        found: the newest lease.
        lease_s: seconds without a renewal after which others may take it.
        kept_lease_s: the same for a store that never deletes a renewal: rarely renewed, so
            that a lease of months stays small.

    Raises:
        StoreError: the store failed.
    """
    now = timestamp()
    lease = BuildLease(
        holder=uuid.uuid4().hex,
        host=socket.gethostname(),
        process_id=os.getpid(),
        pid_space=pid_space(),
        lease_s=lease_s,
        stage_since=now,
        taken_at=now,
        renewed_at=now,
    )
    number = found.number + 1
    try:
        is_ours = registry.offer_lease(key_digest, number, lease)
    except StoreError:
        # The answer may be what was lost.
        if registry.lease(key_digest).lease != lease:
            raise
        is_ours = True
    return HeldLease(registry, key_digest, number, lease, kept_lease_s) if is_ours else None
