"""Which deployments need more of a GPU than they hold, and have room for it."""

import logging
from collections.abc import Mapping

from services.controller.deploy.deployment import Deployment, DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.deploy.gpu_share import GpuShare
from services.controller.interfaces import DeploymentKey, ReplicaFleet

logger = logging.getLogger(__name__)


class OutgrownShares:
    """Compares what replicas hold of GPUs with what they need by now."""

    def __init__(
        self, deployments: Deployments, replicas: ReplicaFleet, threads: FleetThreads
    ) -> None:
        """Nothing is known yet.

        Args:
            deployments: that hold shares.
            replicas: tell what each holds, and what is free.
            threads: where they are asked.
        """
        self._deployments = deployments
        self._replicas = replicas
        self._threads = threads
        # On GPUs without room for the share that they need by now.
        self._cramped: set[DeploymentKey] = set()

    async def find(self, shares: Mapping[DeploymentKey, GpuShare]) -> set[DeploymentKey]:
        """Those that need more of a GPU than they hold, and have room for it beside themselves.

        Without room the new replicas would wait, and none would come for one that ends meanwhile.
        """
        if shares:
            await self._learn_shares()
        wanted = {
            key: share.asked for key, share in shares.items() if self._is_outgrown(key, share)
        }
        if not wanted:
            self._cramped.clear()
            return set()
        try:
            free = await self._threads.ask(self._replicas.free_gpus)
        except Exception as error:
            logger.warning("what GPUs have free is unknown: %r", error)
            return set()
        found = {key for key, asked in wanted.items() if free.get(key.generation, 0.0) >= asked}
        cramped = wanted.keys() - found
        for key in cramped - self._cramped:
            message = "%s version %d on %s: by its proofs it needs more of a GPU; no %g of one free"
            logger.warning(message, *key, wanted[key])
        self._cramped = cramped
        return found

    def _is_outgrown(self, key: DeploymentKey, share: GpuShare) -> bool:
        """Whether it serves, and its replicas hold less of a GPU than they need by now."""
        deployment = self._serving().get(key)
        # Simulations hold none, and need none.
        return deployment is not None and 0 < (deployment.gpu_share or 0) < share.needed

    def _serving(self) -> dict[DeploymentKey, Deployment]:
        known = self._deployments.known().items()
        return {key: found for key, found in known if found.state is DeploymentState.READY}

    async def _learn_shares(self) -> None:
        """Ask what replicas hold of a GPU, once: also of those of an earlier controller."""
        unknown = {k: found for k, found in self._serving().items() if found.gpu_share is None}
        if not unknown:
            return
        try:
            held = await self._threads.ask(self._replicas.gpu_shares)
        except Exception as error:
            logger.warning("what replicas hold of GPUs is unknown: %r", error)
            return
        for key, deployment in unknown.items():
            deployment.gpu_share = held.get(key, 0.0)
