"""Puts another engine in the place of the one that serves; requests are served all the while.

A published engine is loaded beside the one in use and swapped in between two batches. A fallback
is compiled for minutes, beside whatever comes meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from services.contracts.errors import EngineError
from services.replica.batching.batcher import Batcher
from services.replica.closing import ended
from services.replica.engine.choice import EngineChoice
from services.replica.engine.executor import EngineExecutor
from services.replica.engine.loaded_engine import LoadedEngine
from services.replica.engine.manager import EngineManager
from services.replica.engine.standby import Standby
from services.replica.engine.worker import EngineWorker

logger = logging.getLogger(__name__)


class EngineSwaps:
    """The swaps of one replica, from the time it serves; used from the event loop."""

    def __init__(
        self,
        manager: EngineManager,
        worker: EngineWorker,
        batcher: Batcher,
        standby: Standby,
        *,
        loaded: Callable[[], LoadedEngine],
        take_over: Callable[[LoadedEngine], None],
        explain: Callable[[LoadedEngine], None],
        load_limit_s: float,
    ) -> None:
        """Take the parts; nothing is swapped yet.

        Args:
            manager: chooses and loads engines.
            worker: runs the engine in use.
            batcher: gives the worker batches.
            standby: keeps the engine before.
            loaded: the engine in use, which changes without a swap when its standby serves again.
            take_over: called with an engine that serves from now on.
            explain: called with the engine in use when there is more to say of it.
            load_limit_s: after which what is still being loaded or compiled counts as failed.
        """
        self._manager = manager
        self._worker = worker
        self._batcher = batcher
        self._standby = standby
        self._loaded = loaded
        self._take_over = take_over
        self._explain = explain
        self._load_limit_s = load_limit_s
        self._lock = asyncio.Lock()
        self._compiling: asyncio.Task[None] | None = None
        self._has_ended = False

    async def reselect(self) -> bool:
        """Select again; load another engine beside the present one and swap it in.

        Returns whether the engine changed. A fallback is compiled and swapped in after this
        returns: engines that come meanwhile wait for none.

        Raises:
            EngineError: an engine takes too long to load; the next look takes another one.
        """
        async with self._lock:
            if self._has_ended:
                return False
            executor = self._worker.executor
            current = self._loaded()
            in_use = None if current.is_interim else current.digest
            choice = await asyncio.to_thread(self._manager.choose, in_use)
            while is_wanted := await asyncio.to_thread(choice.fetch):
                if self._loaded() is not current:
                    # The engine before serves again, and may be the very one that was fetched.
                    return False
                if choice.is_fallback:
                    break
                # Not before the files are here: a store that fails would cost the standby.
                if new := await self._load_beside(choice.load_fetched, choice.fetched_digest):
                    await self._put_in(new, choice)
                    return True
            # What was refuted does not serve for the minutes that a compiler takes.
            if choice.is_current_refused and (new := await self._load_beside(choice.load_in_place)):
                await self._put_in(new, choice)
            if is_wanted and not self._is_compiling:
                self._compiling = asyncio.create_task(self._compile(choice), name="fallback")
            self._explain_fallback(choice)
            return self._worker.executor is not executor

    async def end(self) -> None:
        """Swap no more; a compiler that works is left alone, and its engine closed."""
        self._has_ended = True
        if self._compiling:
            await ended(self._compiling)

    @property
    def _is_compiling(self) -> bool:
        return self._compiling is not None and not self._compiling.done()

    async def _load_beside(
        self, load: Callable[[], LoadedEngine | None], digest: str = ""
    ) -> EngineExecutor | None:
        """As the standby does, within a limit: a library that hangs must not end later swaps."""
        try:
            async with asyncio.timeout(self._load_limit_s):
                return await self._standby.load_beside(load)
        except TimeoutError:
            words = f"it takes longer than {self._load_limit_s:.0f} s to load"
            if digest:
                self._manager.mark_failed(digest, words)
            raise EngineError(f"engine swap failed: {words}") from None

    async def _compile(self, choice: EngineChoice) -> None:
        """Serve with the fallback once it is compiled, unless another engine came meanwhile."""
        before = self._worker.executor
        words = f"it takes longer than {self._load_limit_s:.0f} s"
        late = asyncio.get_running_loop().call_later(
            self._load_limit_s, self._manager.mark_failed, "", words
        )
        new = None
        try:
            new = await self._standby.load_beside(choice.load_fallback)
        except Exception:
            logger.exception("fallback could not be loaded; keeping the current engine")
        finally:
            late.cancel()
        if new is None:
            await self._reselect_without_fallback()
            return
        is_wanted = False
        try:
            async with self._lock:
                if is_wanted := self._worker.executor is before:
                    await self._put_in(new, choice)
        finally:
            if not is_wanted:
                self._standby.close_soon(new)

    async def _reselect_without_fallback(self) -> None:
        """Take a slower engine, or explain: by what is published now, minutes after the choice."""
        try:
            await self.reselect()
        except Exception:
            logger.exception("no slower engine could be loaded; keeping the current one")

    def _explain_fallback(self, choice: EngineChoice) -> None:
        """Have reports say why a fallback serves, by what is known now."""
        if not self._loaded().digest:
            self._explain(choice.explained(self._loaded()))

    async def _put_in(self, new: EngineExecutor, choice: EngineChoice) -> None:
        """Serve with another engine from the next batch on, and keep the one before for a while.

        One that may serve no longer is closed: as a standby it would answer again.
        """
        worker = self._worker
        try:
            async with self._batcher.between_batches:
                # Not before: a batch may have gone back to the engine before.
                current = self._loaded()
                old = worker.replace(new)
                if choice.is_current_refused and current.digest:
                    self._standby.close_soon(old)
                else:
                    self._standby.keep(replace(old, loaded=current))
                self._take_over(new.loaded)
        except BaseException:
            if worker.executor is not new:
                self._standby.close_soon(new)
            raise
