"""The engine that served before: it stays warm for a while, so that a bad one can be left at once.

It answers the batches that the new engine fails on, and takes over when the new one fails
again and again. It costs its memory, so it is dropped when it was not needed for `keep_s`,
before another engine is loaded, and when the replica closes.
"""

import asyncio
import logging
from collections.abc import Callable

from services.replica.engine.executor import EngineExecutor, EngineThread
from services.replica.engine.loaded_engine import LoadedEngine

logger = logging.getLogger(__name__)

# An engine that hangs cannot be closed; the end of the process releases it.
_CLOSE_TIMEOUT_S = 10.0


class Standby:
    """Holds one engine, or none; used from the event loop.

    Attributes:
        executor: the engine that is held; None where none is.
    """

    def __init__(self, keep_s: float = 0.0, *, close_timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Empty.

        Args:
            keep_s: how long an engine stays after its last use; 0 keeps none.
            close_timeout_s: how long engines that close are waited for.
        """
        self._num_loading = 0
        self._keep_s = keep_s
        self._close_timeout_s = close_timeout_s
        self.executor: EngineExecutor | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def is_loading(self) -> bool:
        """Whether others come beside the one in use, and take time of the device."""
        return self._num_loading > 0

    def keep(self, executor: EngineExecutor) -> None:
        """Hold an engine that served until now; what was held before is closed."""
        self._close(self.take())
        self.executor = executor
        if self._keep_s > 0:
            self.mark_used()
        else:
            self._close(self.take())

    def mark_used(self) -> None:
        """It was needed now: count its time anew."""
        self._stop_clock()
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._keep_s, lambda: self._close(self.take()))

    def take(self) -> EngineExecutor | None:
        """What is held, for the caller to serve with or to close; nothing is held then."""
        self._stop_clock()
        held = self.executor
        self.executor = None
        return held

    async def drop(self) -> None:
        """Close what is held, and wait until no engine is closing any more, up to a limit."""
        self._close(self.take())
        # Not `gather`, which would cancel them with the waiting task.
        if self._closings:
            _, left = await asyncio.wait(self._closings, timeout=self._close_timeout_s)
            if left:
                logger.error("%d engines hang and stay in memory until the process ends", len(left))

    async def load_beside(self, load: Callable[[], LoadedEngine | None]) -> EngineExecutor | None:
        """Drop what is held and load an engine on a thread of its own, beside the one in use.

        Three at once may be more than a device holds. Returns None when `load` does. Where the
        caller stops waiting, an engine that loads late is closed.
        """
        self._num_loading += 1
        try:
            await self.drop()
            loading = asyncio.create_task(_loaded(load))
            try:
                return await asyncio.shield(loading)
            except asyncio.CancelledError:
                loading.add_done_callback(self._close_late)
                raise
        finally:
            self._num_loading -= 1

    def close_soon(self, executor: EngineExecutor) -> None:
        """Close an engine in the background: one that runs a batch now does so after that."""
        task = asyncio.get_running_loop().create_task(executor.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    def _close_late(self, loading: asyncio.Task[EngineExecutor | None]) -> None:
        if not loading.cancelled() and not loading.exception():
            self._close(loading.result())

    def _close(self, executor: EngineExecutor | None) -> None:
        if executor:
            self.close_soon(executor)

    def _stop_clock(self) -> None:
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None


async def _loaded(load: Callable[[], LoadedEngine | None]) -> EngineExecutor | None:
    thread = EngineThread()
    if loaded := await thread.call_or_end(load):
        return EngineExecutor(loaded, thread)
    thread.end()
    return None
