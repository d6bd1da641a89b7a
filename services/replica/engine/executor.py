"""An engine and the one thread that loads, warms, runs and closes it.

Device and math libraries keep state for each thread (handles, workspaces, thread pools).
An engine that was warmed on another thread is cold again for its first requests.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar

from services.contracts.model.recipe import Bucket
from services.replica.engine.loaded_engine import STALL_S, LoadedEngine, RunningEngine

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


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineExecutor:
    """A warm engine on its thread.

    Attributes:
        buckets: the shapes that it was built for, or that the fallback serves.
        pads_to_largest: it computes the largest sizes of a bucket, whatever it is given.
        is_brief: it runs on the event loop's thread, not on its own; see BRIEF_RUN_S.
        is_brief_alone: likewise a call that nothing waits behind; see BRIEF_ALONE_S.
        stall_s: a run that takes longer hangs; see `stall_limit_s`.
    """

    engine: RunningEngine
    buckets: tuple[Bucket, ...]
    thread: EngineThread
    pads_to_largest: bool = False
    is_brief: bool = False
    is_brief_alone: bool = False
    stall_s: float = STALL_S

    @classmethod
    def of(cls, loaded: LoadedEngine, thread: EngineThread) -> Self:
        """An engine on the thread that loaded it."""
        return cls(
            engine=loaded.engine,
            buckets=loaded.buckets,
            thread=thread,
            pads_to_largest=loaded.pads_to_largest,
            is_brief=loaded.is_brief,
            is_brief_alone=loaded.is_brief_alone,
            stall_s=loaded.stall_s,
        )

    async def call(
        self, function: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """Run a function where this engine runs, after earlier ones; see `EngineThread.submit`."""
        if self.is_brief:
            return function(*args, **kwargs)
        return await self.thread.call(function, *args, **kwargs)

    async def close(self) -> None:
        """Close the engine and end its thread.

        A caller that stops waiting for it leaves both to happen after what runs there now.
        """
        try:
            # Cancelling what still waits in the thread's line would take it out of there.
            await asyncio.shield(self.thread.submit(self.engine.close))
        except Exception:
            logger.exception("closing an engine failed; its memory may stay in use")
        finally:
            self.thread.end()
