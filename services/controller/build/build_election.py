"""Which of several controllers of one store builds and writes events: the one that holds a lease.

Two controllers whose nodes differ would write contradicting events, and remake Jobs that the other
has given up. The second one shows what attaches to it, and takes over when the first one ends or
does not renew its lease. The lease stands in the store, as those of builds do, so that it is the
same with Ray and on Kubernetes.
"""

import asyncio
import logging
from typing import Final

from services.contracts.builds.build_lease import LeaseRevision, LeaseWatch
from services.contracts.builds.held_lease import HeldLease, take_lease
from services.contracts.errors import SmeltError
from services.contracts.registry.builds import BuildRegistry

logger = logging.getLogger(__name__)

CONTROLLER: Final = "controller"
# As long as Kubernetes' own controllers hold theirs.
LEASE_S: Final = 15.0
# Where the store allows no delete: 300 renewals a day.
_KEPT_LEASE_S: Final = 900.0
# A store has no events.
_POLL_S: Final = 2.0


class BuildElection:
    """Takes the lease of a store's build loop."""

    def __init__(
        self, registry: BuildRegistry, *, lease_s: float = LEASE_S, poll_s: float = _POLL_S
    ) -> None:
        """Nothing is asked of the store yet.

        Args:
            registry: on the store.
            lease_s: seconds without a renewal after which another controller may take it.
            poll_s: pause between two looks while another controller holds it.
        """
        self._registry, self._lease_s, self._poll_s = registry, lease_s, poll_s
        self._shown = ""

    async def won(self) -> HeldLease:
        """Wait until the lease is ours; it has to be started, and released."""
        watch = LeaseWatch(self._lease_s)
        while True:
            try:
                lease = await asyncio.to_thread(self._take, watch)
            except SmeltError as error:
                self._show(f"the lease of this store's controller cannot be read: {error}")
                lease = None
            except Exception:
                # A loop that ended would do so in silence.
                logger.exception("the lease of this store's controller cannot be taken")
                lease = None
            if lease is not None:
                self._shown = ""
                return lease
            await asyncio.sleep(self._poll_s)

    def _take(self, watch: LeaseWatch) -> HeldLease | None:
        found = self._registry.lease(CONTROLLER)
        if watch.is_takeable(found):
            return take_lease(self._registry, CONTROLLER, found, self._lease_s, _KEPT_LEASE_S)
        self._show(_standby_message(found, self._lease_s))
        return None

    def _show(self, message: str) -> None:
        if message != self._shown:
            logger.warning("%s", message)
            self._shown = message


def _standby_message(found: LeaseRevision, lease_s: float) -> str:
    holder = "a controller of another release"
    if found.lease:
        holder, lease_s = found.lease.holder_words, found.lease.lease_s
    return (
        f"builds and events of this store are those of another controller, {holder}; this one "
        f"stands by, and takes over when that one ends or renews nothing for {lease_s:g} s. Two "
        "fleets need two stores"
    )
