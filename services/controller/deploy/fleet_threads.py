"""Threads for calls that block in Ray: one that hangs stops neither the others nor the loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
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
# Calls that hang keep their threads and stacks until they return.
_NUM_THREADS = 64


class FleetThreads:
    """Not the loop's own threads: those serve the store too, and are six on two cores.

    Attributes:
        is_exhausted: whether calls hang in all threads: the last one that ended had none.
    """

    def __init__(
        self,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        ask_timeout_s: float = ASK_TIMEOUT_S,
    ) -> None:
        """No thread runs yet."""
        self._submit_timeout_s = submit_timeout_s
        self._ask_timeout_s = ask_timeout_s
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="fleet")
        self._asking = asyncio.Semaphore(_NUM_ASKING)
        # Serve's pickler takes one application at a time anyway.
        self._submitting = asyncio.Semaphore(1)
        self.is_exhausted = False

    async def ask(self, function: Callable[..., T], *args: object) -> T:
        """Call what answers soon.

        Raises:
            NotReadyError: it did not answer in time; its thread is left to it.
        """
        async with _within(self._ask_timeout_s, "Ray did not answer"), self._asking:
            return await self._call(function, *args)

    async def submit(self, function: Callable[..., object], *args: object) -> None:
        """Call what hands over an application, one call after another.

        Raises:
            NotReadyError: it did not return in time; its thread is left to it.
        """
        fault = "Ray Serve did not take an application"
        # One that hangs costs those behind it no time of theirs.
        async with self._submitting, _within(self._submit_timeout_s, fault):
            await self._call(function, *args)

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        called = self._threads.submit(function, *args)
        try:
            return await asyncio.wrap_future(called)
        finally:
            # What can still be cancelled has had no thread.
            self.is_exhausted = called.cancel()

    def close(self) -> None:
        """Start nothing more; what hangs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@contextlib.asynccontextmanager
async def _within(timeout_s: float, fault: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise  # its own timeout, not ours
        raise NotReadyError(
            f"{fault} within {timeout_s:g} s; is the head node alive? See the log of its "
            "GCS; on one host: smelt logs gcs_server"
        ) from error
