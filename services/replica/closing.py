"""Closing several parts, of which any may fail or be cut short."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


async def close_all(*steps: Callable[[], Awaitable[object]]) -> None:
    """Await every step in order, also after one that raised or was cancelled.

    Raises:
        BaseException: the first error, or the cancellation when that came first; later ones
            are logged.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            await step()
        except BaseException as error:
            if first is None:
                first = error
            elif not isinstance(error, asyncio.CancelledError):
                logger.exception("another part failed to close")
    if first is not None:
        raise first


async def stop_accepting(server: asyncio.Server) -> None:
    """Close a listening server without losing the connection that it is just taking.

    Where a server closes between a connection's accept and its transport, asyncio leaves the
    socket to the garbage collector, and the peer waits for an answer until then.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    # What was accepted already gets its transport in this turn of the loop.
    await asyncio.sleep(0)
    server.close()


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it is over; its own error is logged, not raised."""
    task.cancel()
    # Unlike awaiting it, this distinguishes its cancellation from the caller's.
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()):
        logger.error("task '%s' had failed before it was ended", task.get_name(), exc_info=error)
