"""The account of request memory of one process, over all of its connections.

A request has its size before its bytes. A large one reserves that size before its client may send
more than the stream's first window: reservations are granted first come, first served, and whatever
has been granted can be completed without waiting. All other bytes of requests are counted, and what
comes beyond their bound is refused. Reservations never wait for counted bytes, so neither can block
the other.
"""

import time
from collections.abc import Callable
from typing import Final

# Of the bound of counted bytes; above it no client may stand still with any.
_SCARCE_SHARE: Final = 0.5


class Reservation:
    """The memory of one large request.

    Attributes:
        num_bytes: that are reserved.
        is_granted: the client may send them.
        on_granted: is called when that becomes so later.
    """

    __slots__ = ("is_granted", "num_bytes", "on_granted")

    def __init__(self, num_bytes: int, on_granted: Callable[[], None]) -> None:
        self.num_bytes = num_bytes
        self.on_granted = on_granted
        self.is_granted = False


class RequestMemory:
    """Reservations of large requests, and the count of all other bytes of requests.

    Attributes:
        num_counted: bytes that are held without a reservation: of requests that are not complete,
            of messages that a stream's handler has not read, of small ones that came compressed,
            and metadata that calls do not share.
    """

    def __init__(
        self,
        max_reserved: int,
        max_counted: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is held.

        Args:
            max_reserved: bytes of granted reservations; a single one may be larger.
            max_counted: bytes that may be held without one.
            clock: gives seconds.
        """
        self._max_reserved = max_reserved
        self._max_counted = max_counted
        self._clock = clock
        self.num_counted = self._num_reserved = 0
        self._granted: set[Reservation] = set()
        self._waiting: dict[Reservation, None] = {}
        self._waited_s = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether more bytes are counted than may be held."""
        return self.num_counted > self._max_counted

    @property
    def is_scarce(self) -> bool:
        """Whether requests have to make progress to keep the bytes that are counted of them."""
        return self.num_counted > self._max_counted * _SCARCE_SHARE

    @property
    def num_waiting(self) -> int:
        """Reservations that are not granted yet."""
        return len(self._waiting)

    def has_waiters(self, within_s: float) -> bool:
        """Whether a reservation waits, or did so within that time: waiting clients may give up."""
        return bool(self._waiting) or self._clock() - self._waited_s < within_s

    def count(self, num_bytes: int) -> None:
        """So many bytes more are held without a reservation, or fewer."""
        self.num_counted += num_bytes

    def reserve(self, num_bytes: int, on_granted: Callable[[], None]) -> Reservation:
        """Reserve memory; `on_granted` is called where that is granted later."""
        reservation = Reservation(num_bytes, on_granted)
        if not self._waiting and self._fits(reservation):
            self._grant(reservation)
        else:
            self._waiting[reservation] = None
        return reservation

    def release(self, reservation: Reservation) -> None:
        """It is not needed any more; a second call does nothing."""
        if reservation in self._waiting:
            del self._waiting[reservation]
            # Its client gave up and may come back: memory still counts as wanted for a while.
            self._waited_s = self._clock()
        elif reservation in self._granted:
            self._granted.discard(reservation)
            self._num_reserved -= reservation.num_bytes
        self._grant_waiting()

    def shrink(self, reservation: Reservation, num_bytes: int) -> None:
        """It needs no more than this."""
        if reservation in self._granted and num_bytes < reservation.num_bytes:
            self._num_reserved -= reservation.num_bytes - num_bytes
            reservation.num_bytes = num_bytes
            self._grant_waiting()

    def _fits(self, reservation: Reservation) -> bool:
        # One that is larger than all memory is granted alone.
        return not self._granted or self._num_reserved + reservation.num_bytes <= self._max_reserved

    def _grant(self, reservation: Reservation) -> None:
        self._granted.add(reservation)
        self._num_reserved += reservation.num_bytes
        reservation.is_granted = True

    def _grant_waiting(self) -> None:
        # In their order: large ones would never be granted while small ones pass them.
        while self._waiting and self._fits(reservation := next(iter(self._waiting))):
            del self._waiting[reservation]
            self._waited_s = self._clock()
            self._grant(reservation)
            # Last: it may come back here, by a call that ends and releases what it holds.
            reservation.on_granted()
