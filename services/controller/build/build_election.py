"""Which of several controllers of one store builds and writes events: the one that holds a lease.

Two controllers whose nodes differ would write contradicting events, and remake Jobs that the other
has given up. The second one shows what attaches to it, and takes over when the first one ends or
does not renew its lease. The lease stands in the store, as those of builds do, so that it is the
same with Ray and on Kubernetes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from services.contracts.builds.build_lease import LeaseRevision, LeaseWatch
from services.contracts.builds.held_lease import HeldLease, take_lease
from services.contracts.errors import SmeltError
from services.contracts.registry.builds import BuildRegistry
from services.contracts.text.words import readable_time
from services.pb import fleet_v1_pb2 as fleet

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
        """Nothing is read from the store yet.

        Args:
            registry: on the store.
            lease_s: seconds without a renewal after which another controller may take it.
            poll_s: pause between two looks while another controller holds it.
        """
        self._registry = registry
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._shown = ""

    async def won(self, on_standby: Callable[[fleet.Standby], None]) -> HeldLease:
        """Wait until the lease is ours; it has to be started, and released.

        Args:
            on_standby: called in the event loop after each look that found it not to be ours.
        """
        watch = LeaseWatch(self._lease_s)
        while True:
            found = await asyncio.to_thread(self._try_take, watch)
            if isinstance(found, HeldLease):
                self._shown = ""
                return found
            self._show(found.reason)
            on_standby(found)
            await asyncio.sleep(self._poll_s)

    def _try_take(self, watch: LeaseWatch) -> HeldLease | fleet.Standby:
        try:
            return self._take(watch)
        except SmeltError as error:
            return fleet.Standby(reason=_unread_message(error))
        except Exception as error:
            # A loop that ended would do so in silence.
            logger.exception("the lease of this store's controller cannot be taken")
            return fleet.Standby(reason=_unread_message(error))

    def _take(self, watch: LeaseWatch) -> HeldLease | fleet.Standby:
        found = self._registry.lease(CONTROLLER)
        if watch.is_takeable(found):
            held = take_lease(self._registry, CONTROLLER, found, self._lease_s, _KEPT_LEASE_S)
            if held is not None:
                return held
            # Another controller was first.
            found = self._registry.lease(CONTROLLER)
        return _standby(found, self._lease_s)

    def _show(self, message: str) -> None:
        if message != self._shown:
            logger.warning("%s", message)
            self._shown = message


def _unread_message(error: Exception) -> str:
    return (
        f"the lease of this store's controller cannot be read: {error}. Until it can be, this "
        "controller serves, and builds nothing"
    )


def _standby(found: LeaseRevision, lease_s: float) -> fleet.Standby:
    holder = "a controller of another release"
    since = ""
    when = ""
    if lease := found.lease:
        holder = lease.holder_process
        since = lease.taken_at
        lease_s = lease.lease_s
        when = f" since {readable_time(since)}"
    reason = (
        f"standby: {holder} holds the controller lease of this store{when}, builds and records "
        "events. This controller serves, and builds nothing; it takes over when that one ends or "
        f"does not renew the lease for {lease_s:g} s. Use one store for each fleet"
    )
    return fleet.Standby(holder=holder, since=since, reason=reason)
