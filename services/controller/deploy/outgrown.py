"""Which deployments need more of a GPU than they hold, and have room for it."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from services.contracts.selection.gpu_share import GpuShare
from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.interfaces import DeploymentKey
from services.controller.room import Room

logger = logging.getLogger(__name__)


class OutgrownShares:
    """Compares what replicas hold of GPUs with what they need by now."""

    def __init__(
        self, deployments: Deployments, rooms: Callable[[], Awaitable[Mapping[str, Room]]]
    ) -> None:
        """Nothing is known yet; `rooms` asks what deployments hold, and what is free."""
        self._deployments = deployments
        self._rooms = rooms
        # On GPUs without room for the share that they need by now.
        self._cramped: set[DeploymentKey] = set()

    async def find(self, shares: Mapping[DeploymentKey, GpuShare]) -> set[DeploymentKey]:
        """Those that need more of a GPU than they hold, and have room for it beside themselves.

        Without room the new replicas would wait, and none would come for one that ends meanwhile.
        """
        known = self._deployments.known()
        serving = {key: known[key] for key in shares.keys() & known.keys()}
        serving = {k: each for k, each in serving.items() if each.state is DeploymentState.READY}
        rooms: Mapping[str, Room] = {}
        try:
            # Once: also of those of an earlier controller.
            if any(each.gpu_share is None for each in serving.values()):
                rooms = await self._rooms()
            for key, each in serving.items():
                if each.gpu_share is None:
                    room = rooms.get(key.generation)
                    each.gpu_share = room.held[key].gpu_share if room and key in room.held else 0.0
            # Simulations hold none, and need none.
            wanted = {
                key: shares[key].asked
                for key, each in serving.items()
                if 0 < (each.gpu_share or 0) < shares[key].needed
            }
            if wanted:
                rooms = rooms or await self._rooms()
        except Exception as error:
            logger.warning("what replicas hold of GPUs, and what is free, is unknown: %r", error)
            return set()
        found = {
            key
            for key, asked in wanted.items()
            if key.generation in rooms and rooms[key.generation].free_gpu >= asked
        }
        cramped = wanted.keys() - found
        for key in cramped - self._cramped:
            message = "%s version %d on %s: by its proofs it needs more of a GPU; no %g of one free"
            logger.warning(message, *key, wanted[key])
        self._cramped = cramped
        return found
