"""An engine and the one thread that loads, warms, runs and closes it.

Device and math libraries keep state for each thread (handles, workspaces, thread pools).
An engine that was warmed on another thread is cold again for its first requests.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from services.replica.engine.loaded_engine import LoadedEngine, RunningEngine

logger = logging.getLogger(__name__)

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

_THREAD_NAME = "engine"


class EngineThread:
    """One thread, for one engine or a tokenizer; calls wait in line."""

    def __init__(self, name: str = _THREAD_NAME) -> None:
        """The thread starts with the first call; its name is for who looks at the process."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        # Also those whose caller has gone: a thread goes on with what it has begun.
        self._unfinished: set[Future[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether it runs nothing and nothing waits for it."""
        return not self._unfinished

    def submit(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> asyncio.Future[_Result]:
        """Run a function on the thread.

        Args:
            function: called with the other arguments.
            *args: of the function.
            **kwargs: of the function.

        Returns:
            A future with its result or with what it raises.
        """
        work = self._pool.submit(function, *args, **kwargs)
        self._unfinished.add(work)
        work.add_done_callback(self._unfinished.discard)
        return asyncio.wrap_future(work)

    async def call(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """As `submit`, and wait for it; see `submit`."""
        return await self.submit(function, *args, **kwargs)

    async def call_or_end(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """As `call`, and end the thread when the function raises; see `submit`.

        Raises whatever the function raises.
        """
        try:
            return await self.call(function, *args, **kwargs)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let the thread end after what it does now."""
        self._pool.shutdown(wait=False)


@dataclass(frozen=True, eq=False)
class EngineExecutor:
    """A warm engine on the thread that loaded it; `is_brief` runs on the event loop's instead."""

    loaded: LoadedEngine
    thread: EngineThread

    async def call(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """Run a function where this engine runs, after earlier ones; see `EngineThread.submit`."""
        if self.loaded.is_brief:
            return function(*args, **kwargs)
        return await self.thread.call(function, *args, **kwargs)

    async def close(self) -> None:
        """Close the engine and end its thread.

        A caller that stops waiting for it leaves both to happen after what runs there now.
        """
        try:
            # Cancelling what still waits in the thread's line would take it out of there.
            await asyncio.shield(self.thread.submit(_close, self.loaded.engine))
        except Exception:
            logger.exception("closing an engine failed; its memory may stay in use")
        finally:
            self.thread.end()


def _close(engine: RunningEngine) -> None:
    engine.close()
    # Where nothing has imported it, it holds nothing.
    if "torch" in sys.modules:
        from services.engines.inductor.cuda_graph import free_cached_memory

        free_cached_memory()
