"""Threads for calls that block in Ray: one that hangs stops neither the others nor the loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.contracts.errors import NotReadyError

T = TypeVar("T")

# Asking takes milliseconds; these many may be slow at once before the next one waits.
_NUM_ASKING = 4
# Serve takes an application within a second or two; one that it has not taken by then it may
# still take, and the next pass looks whether it did.
SUBMIT_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 30.0
# Threads that hang keep their stacks: from this number on Ray counts as unreachable.
_MAX_STUCK = 64


class FleetThreads:
    """Not the loop's own threads: those serve the store too, and are six on two cores."""

    def __init__(
        self,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        ask_timeout_s: float = ASK_TIMEOUT_S,
    ) -> None:
        """No thread runs yet."""
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._num_stuck = 0
        # Serve's pickler takes one application at a time anyway.
        self._submitting = ThreadPoolExecutor(1, thread_name_prefix="deploy")
        self._asking = ThreadPoolExecutor(_NUM_ASKING, thread_name_prefix="fleet")

    async def ask(self, function: Callable[..., T], *args: object) -> T:
        """Call what answers soon.

        Raises:
            NotReadyError: it did not answer in time; its thread is left to it.
        """
        asked = asyncio.get_running_loop().run_in_executor(self._asking, function, *args)
        try:
            async with asyncio.timeout(self._ask_timeout_s):
                return await asked
        except TimeoutError as error:
            if not asked.cancelled():
                raise  # its own timeout, not ours
            self._count_stuck()
            raise NotReadyError(
                f"Ray did not answer within {self._ask_timeout_s:g} s; is the head node alive? "
                "See: ray status"
            ) from error

    def _count_stuck(self) -> None:
        """When a call hangs in each thread, call in new ones."""
        self._num_stuck += 1
        if self._num_stuck % _NUM_ASKING == 0 and self._num_stuck < _MAX_STUCK:
            self._asking.shutdown(wait=False)
            self._asking = ThreadPoolExecutor(_NUM_ASKING, thread_name_prefix="fleet")

    async def submit(self, function: Callable[..., None], *args: object) -> None:
        """Call what hands over an application, one call after another.

        Raises:
            NotReadyError: it, or one before it, did not return in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._submit_timeout_s):
                await loop.run_in_executor(self._submitting, function, *args)
        except TimeoutError as error:
            raise NotReadyError(
                f"Ray Serve did not take an application within {self._submit_timeout_s:g} s; is "
                "the head node alive? See: ray status"
            ) from error

    def close(self) -> None:
        """Start nothing more; what hangs is not waited for."""
        for executor in (self._submitting, self._asking):
            executor.shutdown(wait=False, cancel_futures=True)
