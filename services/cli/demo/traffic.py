"""Requests at a gentle rate while the fleet builds, and what became of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Self

from services.contracts.errors import SmeltError
from services.contracts.text.durations import milliseconds
from services.contracts.text.words import counted

# So few that engines are timed beside them: calls that meet none of them are enough for a verdict.
PERIOD_S = 0.5
# Of which a median is taken: five seconds.
_NUM_MEDIAN = 10


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests so far.

    Attributes:
        first_p50_s: median of the first answers; None before there is any.
        p50_s: of the newest ones.
        last_fault: why the last one failed that did; "" when none did.
    """

    num_requests: int = 0
    num_failed: int = 0
    first_p50_s: float | None = None
    p50_s: float | None = None
    last_fault: str = ""

    @property
    def words(self) -> str:
        """For one line."""
        words = f"{counted(self.num_requests, 'request')}, {self.num_failed} failed"
        if self.first_p50_s is None or self.p50_s is None:
            return words
        first = milliseconds(self.first_p50_s)
        now = milliseconds(self.p50_s)
        return f"{words}, median {first} at the start, {now} now"


class DemoTraffic:
    """One caller in a thread; use it as a context manager, which ends it.

    Attributes:
        answered_at: when the first answer came, in seconds since the epoch; None before.
    """

    def __init__(
        self,
        wait_served: Callable[[], None],
        ask: Callable[[], object],
        period_s: float = PERIOD_S,
    ) -> None:
        """No request is sent yet.

        Args:
            wait_served: returns once the model serves: requests before that are no failures.
            ask: sends one request, and raises when it fails.
            period_s: pause between two requests.
        """
        self._wait_served = wait_served
        self._ask = ask
        self._period_s = period_s
        # Appended to by the thread alone, in one step each.
        self._latencies_s: list[float] = []
        self._faults: list[str] = []
        self._refusal: SmeltError | None = None
        self.answered_at: float | None = None
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo traffic", daemon=True)

    def __enter__(self) -> Self:
        """Start to send requests."""
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Send no more; a request under way is not waited for."""
        self._is_stopping.set()

    def counts(self) -> Counts:
        """How it goes.

        Raises:
            SmeltError: the model does not serve at all.
        """
        if self._refusal is not None:
            raise self._refusal
        answered_s = self._latencies_s[:]
        faults = self._faults[:]
        return Counts(
            num_requests=len(answered_s) + len(faults),
            num_failed=len(faults),
            first_p50_s=median(answered_s[:_NUM_MEDIAN]) if answered_s else None,
            p50_s=median(answered_s[-_NUM_MEDIAN:]) if answered_s else None,
            last_fault=faults[-1] if faults else "",
        )

    def _run(self) -> None:
        try:
            self._wait_served()
        except SmeltError as error:
            self._refusal = error
            return
        self._ask_once()
        while not self._is_stopping.wait(self._period_s):
            self._ask_once()

    def _ask_once(self) -> None:
        began_s = time.monotonic()
        try:
            self._ask()
        except Exception as error:  # whatever a client raises
            # One that the end cuts off is no failure of what served.
            if not self._is_stopping.is_set():
                self._faults.append(str(error))
            return
        self.answered_at = self.answered_at or time.time()
        self._latencies_s.append(time.monotonic() - began_s)
