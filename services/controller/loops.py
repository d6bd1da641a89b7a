"""The controller's two loops, run together: one deploys, the other builds."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from services.controller.build.build_loop import BuildLoop
from services.controller.deploy.reconcile import ReconcileLoop


class Loops:
    """Runs the loops until cancelled; the build loop only where builds are wanted."""

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

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._deploying.run(), name="deploy")
            if self._building:
                tasks.create_task(self._building.run(), name="build")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run inside a block."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
