"""The controller's two loops, run together: one deploys, the other builds."""

import asyncio
import logging
import math

from services.controller.build.build_loop import BuildLoop
from services.controller.deploy.reconcile import ReconcileLoop

logger = logging.getLogger(__name__)


class Loops:
    """Runs the loops until it is to stop; the build loop only where builds are wanted."""

    def __init__(self, deploying: ReconcileLoop, building: BuildLoop | None) -> None:
        """Nothing runs yet."""
        self._deploying = deploying
        self._building = building

    @property
    def last_sync_s(self) -> float:
        """When each loop that works last ended a sync: the earlier one, in monotonic seconds."""
        building_s = self._building.last_sync_s if self._building else math.inf
        return min(self._deploying.last_sync_s, building_s)

    def enqueue(self) -> None:
        """Enqueue a sync of both; call it in the event loop."""
        self._deploying.enqueue()
        if self._building:
            self._building.enqueue()

    def note_use(self, model: str, seconds_ago: float = 0.0) -> None:
        """Take when the last request for an on-demand model was."""
        self._deploying.note_use(model, seconds_ago)

    async def reconcile_now(self) -> None:
        """Compare store and fleet once; what is to be built is looked at soon after."""
        await self._deploying.reconcile_now()
        if self._building:
            self._building.enqueue()

    async def run_until(self, stop_requested: asyncio.Event) -> bool:
        """Run until then, or until a loop ends, which none should; whether none did."""
        stopping = asyncio.create_task(stop_requested.wait())
        tasks = [asyncio.create_task(self._deploying.run(), name="deploy")]
        if self._building:
            tasks.append(asyncio.create_task(self._building.run(), name="build"))
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
        for task in ended:
            fault = None if task.cancelled() else task.exception()
            logger.critical("the %s loop has ended", task.get_name(), exc_info=fault)
        for running in (stopping, *tasks):
            running.cancel()
        await asyncio.wait(tasks)
        return not ended
