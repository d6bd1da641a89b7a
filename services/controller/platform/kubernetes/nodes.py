"""The nodes of a Kubernetes cluster, as pools: those that exist, and those that may.

GPU Feature Discovery's labels on Node objects show what there is. The worker groups of a
RayService show what may be started: pools at zero, which no running Ray can know of.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal
from lightkube import AsyncClient
from lightkube.config.kubeconfig import SingleConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Node

from services.contracts.errors import NotReadyError
from services.contracts.hardware.node_class import NodeClass
from services.controller.interfaces import NodePool
from services.controller.platform.kubernetes.client import async_client
from services.controller.platform.kubernetes.node_objects import (
    ObservedNode,
    observed_node,
    pools_of,
    worker_group_classes,
)
from services.controller.platform.kubernetes.serve_config import Wanted, replicas_asked_for
from services.controller.platform.kubernetes.settling import Settling
from services.controller.platform.kubernetes.watch import ObjectWatch, WatchedKind, WatchTiming

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _ObservedService:
    """What a RayService may start, and what it asks to be served."""

    groups: dict[str, NodeClass]
    wanted: Wanted


def _observed_service(service: Mapping[str, Any]) -> _ObservedService:
    return _ObservedService(worker_group_classes(service), replicas_asked_for(service))


class KubernetesNodes:
    """A NodeSource that a thread of its own keeps fresh; `pools` never waits for the cluster."""

    def __init__(
        self,
        cluster: SingleConfig,
        namespace: str,
        on_change: Callable[[], None],
        timing: WatchTiming | None = None,
    ) -> None:
        """Nothing is asked before `start`.

        Args:
            cluster: see `client.find_cluster`.
            namespace: where the fleet's RayServices are.
            on_change: called in this source's thread whenever `pools` would answer otherwise.
            timing: waits; the defaults suit a real cluster.
        """
        self._cluster = cluster
        self._namespace = namespace
        self._on_change = on_change
        self._timing = timing or WatchTiming()
        self._settling = Settling[ObservedNode](self._timing.settle_s)
        self._groups: dict[str, NodeClass] = {}
        self._wanted: Wanted | None = None
        self._pools: list[NodePool] | None = None
        # Pools of these are stale, which is no change to tell a listener of: nodes flap.
        self._doubtful: set[NodeClass] = set()
        self._watches: list[ObjectWatch[Any]] = []
        # Made in another thread than it is used in: an event binds to a loop at its first wait.
        self._wake = asyncio.Event()
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Begin to watch; returns at once.

        Raises:
            InvalidRequestError: the cluster's certificates or credentials cannot be read.
        """
        client = async_client(self._cluster, self._namespace)
        self._watches = self._watches_of(client)
        portal = self._running.enter_context(start_blocking_portal(name="kubernetes-nodes"))
        watching = portal.start_task_soon(self._watch, client)
        # Runs before the portal's own exit, which waits for this task without a limit.
        self._running.callback(watching.cancel)

    def stop(self) -> None:
        """End the watch and its thread; harmless twice, or without a start."""
        self._running.close()

    def pools(self) -> list[NodePool]:
        """Pools by the cluster's last answer.

        All are stale from a failure to the next list, and one whose last node was then seen to be
        gone or not ready until that has settled.

        Raises:
            NotReadyError: the cluster has not been read yet, or is out of reach for so long
                that what is known may no longer be so.
        """
        errors = [str(watch.last_error) for watch in self._watches if watch.last_error]
        because = f": {'; '.join(errors)}" if errors else ""
        if self._pools is None:
            raise NotReadyError(f"nodes of the Kubernetes cluster are not known yet{because}")
        contacts = [watch.contact_s for watch in self._watches if watch.contact_s is not None]
        # The least recent one: pools are made of all watches, and a silent one makes them stale.
        silence_s = time.monotonic() - min(contacts)
        if silence_s > self._timing.lost_after_s:
            raise NotReadyError(
                f"no answer of the Kubernetes cluster for {silence_s:.0f} s{because}"
            )
        doubtful = self._doubtful
        return [
            replace(pool, is_stale=bool(errors) or pool.node_class in doubtful)
            for pool in self._pools
        ]

    def num_replicas_wanted(self, model: str, version: int) -> int | None:
        """What the RayServices ask for; None until they were read."""
        wanted = self._wanted
        return None if wanted is None else wanted.get((model, version), 0)

    async def _watch(self, client: AsyncClient) -> None:
        try:
            async with anyio.create_task_group() as work:
                for watch in self._watches:
                    work.start_soon(watch.run)
                work.start_soon(self._publish_settled)
        except Exception:
            logger.exception("watch of the cluster's nodes ended by a fault")
        finally:
            # In a cancelled task any await raises at once, and the connections would stay open.
            with anyio.CancelScope(shield=True):
                await client.close()

    def _watches_of(self, client: AsyncClient) -> list[ObjectWatch[Any]]:
        ray_service = WatchedKind(
            resource=create_namespaced_resource("ray.io", "v1", "RayService", "rayservices"),
            namespace=self._namespace,
            is_optional=True,
        )
        node = WatchedKind(resource=Node)
        return [
            ObjectWatch(client, node, self._timing, observed_node, self._take_nodes),
            ObjectWatch(client, ray_service, self._timing, _observed_service, self._take_services),
        ]

    def _take_nodes(self, nodes: dict[str, ObservedNode]) -> None:
        self._settling.observe(nodes, time.monotonic())
        self._note_doubts()
        self._wake.set()

    def _take_services(self, services: dict[str, _ObservedService]) -> None:
        """No wait here: a person changes these, and means it."""
        self._groups = {name: c for one in services.values() for name, c in one.groups.items()}
        wanted: Wanted = {}
        for one in services.values():
            for key, number in one.wanted.items():
                wanted[key] = wanted.get(key, 0) + number
        # The first ones are published with the first pools.
        is_new = self._wanted not in (None, wanted)
        self._wanted = wanted
        self._wake.set()
        if is_new:
            self._notify()

    async def _publish_settled(self) -> None:
        """Publish when something was seen, and again when something has settled."""
        while True:
            self._publish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settling.due_in_s(time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()

    def _publish(self) -> None:
        # Nodes without worker groups, or the reverse, would look as if pools had gone.
        if any(watch.contact_s is None for watch in self._watches):
            return
        self._settling.settle(time.monotonic())
        self._note_doubts()
        pools = pools_of(self._settling.settled, self._groups.items())
        if pools == self._pools:
            return
        self._pools = pools
        logger.info("pools of the Kubernetes cluster: %s", _in_short(pools))
        self._notify()

    def _note_doubts(self) -> None:
        """A class without a node that was seen ready last gets no task: it may be gone."""
        doubted = self._settling.doubted
        settled = self._settling.settled.items()
        ready = {name: n.node_class for name, n in settled if not n.unschedulable_reason}
        certain = {ready[name] for name in ready.keys() - doubted}
        self._doubtful = {ready[name] for name in ready.keys() & doubted} - certain

    def _notify(self) -> None:
        try:
            self._on_change()
        except Exception:
            logger.exception("a listener failed; what was seen is published all the same")


def _in_short(pools: list[NodePool]) -> str:
    return ", ".join(f"{p.num_nodes} x {p.node_class.generation}" for p in pools) or "none"
