"""Loads and unloads models for FleetControl: a note in the store, then a look at it."""

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass

from services.contracts.errors import UnsupportedFeatureError
from services.contracts.registry.registry import Registry
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.deployment import DeploymentState
from services.controller.interfaces import Reconciler
from services.pb import fleet_v1_pb2 as fleet

logger = logging.getLogger(__name__)

_UNNAMED = "a client of a gateway"
# A client that waits for longer learns from the repository index.
SETTLED_WITHIN_S = 600.0
_ON_THE_WAY = (DeploymentState.LOADING, DeploymentState.UNLOADING)


@dataclass(frozen=True)
class Serving:
    """Has models served, or not, and returns the outcome.

    Attributes:
        models: where versions are found and the change is recorded.
        state: shows when a change is in force.
        loop: is woken by a change.
        is_placing: whether replicas are placed by this controller, and not by a RayService.
    """

    models: Registry
    state: FleetState
    loop: Reconciler
    is_placing: bool

    async def set_served(
        self, name: str, *, is_served: bool, who: str = ""
    ) -> fleet.SetServedReply:
        """Load or unload a model; a second call changes nothing.

        A load returns when the model is ready on one replica, or cannot be: then with the reason.

        Args:
            name: of the model.
            is_served: False unloads it.
            who: asked for it; "" for a client without a name.

        Raises:
            NotFoundError: the store has no such model.
            UnsupportedFeatureError: replicas are placed by a RayService.
        """
        if not self.is_placing:
            raise UnsupportedFeatureError(
                f"model '{name}' is loaded and unloaded by the RayService: change its serveConfigV2"
            )
        newest = await asyncio.to_thread(self.models.require_version, name)
        who = who or _UNNAMED
        is_new = await asyncio.to_thread(self.models.set_served, name, is_served=is_served, who=who)
        if is_new:
            state = "to be served" if is_served else "unloaded"
            logger.info("model %s is %s, as %s asked", name, state, who)
        await self.loop.reconcile_now()
        if not is_served:
            return fleet.SetServedReply()
        # As a request does: an on-demand model that has left comes back.
        self.loop.note_use(name)
        return await self._settled(name, newest)

    async def _settled(self, name: str, version: int) -> fleet.SetServedReply:
        """How a model is once it is not on its way any more, or has been for too long."""
        try:
            async with asyncio.timeout(SETTLED_WITHIN_S):
                return await self._end_of_way(name, version)
        except TimeoutError:
            model = _newest(self.state.models(), name)
            why = model.reason if model else "it is not known any more"
            reason = (
                f"it is not ready after {SETTLED_WITHIN_S:g} s, and goes on loading: {why}; see: "
                "smelt status"
            )
            return fleet.SetServedReply(reason=reason)

    async def _end_of_way(self, name: str, version: int) -> fleet.SetServedReply:
        was_unloading = False
        async with aclosing(self.state.watch()) as watch:
            async for _ in watch:
                model = _newest(self.state.models(), name)
                if model is None or model.version < version or model.is_unloaded:
                    reason = f"model '{name}' was unloaded or removed meanwhile"
                    return fleet.SetServedReply(reason=reason)
                was_unloading |= model.state == DeploymentState.UNLOADING
                is_ready = model.state == DeploymentState.READY
                is_gone = model.state in (DeploymentState.UNAVAILABLE, DeploymentState.STANDBY)
                if was_unloading and is_gone:
                    break
                if model.state not in _ON_THE_WAY:
                    return fleet.SetServedReply(is_ready=is_ready, reason=model.reason)
        # What was there is gone only now, so that it can be deployed anew.
        await self.loop.reconcile_now()
        self.loop.note_use(name)
        return await self._end_of_way(name, version)


def _newest(models: list[fleet.ServedModel], name: str) -> fleet.ServedModel | None:
    versions = [model for model in models if model.name == name]
    return max(versions, key=lambda model: model.version, default=None)
