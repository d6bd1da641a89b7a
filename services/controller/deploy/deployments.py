"""What is deployed: one application for each model version on each generation.

Keeps a task for each deployment and each withdrawal, because both take long, and the
state of each. Whether one is wanted is the reconcile loop's to decide.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from services.contracts.errors import NotReadyError, SmeltError
from services.contracts.model.manifest import ModelVersion
from services.contracts.process.backoff import wait_after
from services.controller.deploy.deployment import Deployment, DeploymentState
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.interfaces import DeploymentKey, ReplicaFleet, Unplaced

logger = logging.getLogger(__name__)

STARTING = "replicas are starting"
# Serve sends no notification when an application runs or is gone; its own client polls as often.
_STATUS_PERIOD_S = 0.1
_PAUSE_AFTER_FAULT_S = 1.0
_MISSED_BEFORE_FORGOTTEN = 2
_FIRST_RETRY_S = 15.0
_LAST_RETRY_S = 600.0
# A model that loads for minutes need not be polled ten times a second.
_SLOWEST_STATUS_PERIOD_S = 2.0
# Placing takes a moment; from then on the reason for the wait is shown.
_UNPLACED_AFTER_S = 10.0
# Longer than any model takes to load, its fallback's compilation included.
_READY_WITHIN_S = 3600.0
# Serve drains replicas for less than a minute.
_GONE_WITHIN_S = 300.0
# Replicas try to attach every few seconds.
_ATTACH_WITHIN_S = 60.0


class Deployments:
    """Starts and withdraws deployments; used from one event loop."""

    def __init__(
        self,
        replicas: ReplicaFleet,
        threads: FleetThreads,
        *,
        on_change: Callable[[str], None],
        on_success: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Nothing is deployed yet.

        Args:
            replicas: places them.
            threads: where calls to `replicas` may block.
            on_change: called with the model's name when a deployment's state differs.
            on_success: called when something that took long has worked, so that what waited
                for it can go on; what failed waits for the next resync.
            clock: monotonic seconds.
        """
        self._clock = clock
        self._replicas = replicas
        self._threads = threads
        self._on_change = on_change
        self._on_success = on_success
        self._known: dict[DeploymentKey, Deployment] = {}
        self._withdrawals: dict[DeploymentKey, asyncio.Task[None]] = {}

    def __contains__(self, key: object) -> bool:
        """Whether it was started, or is being withdrawn."""
        return key in self._known

    def all(self) -> list[DeploymentKey]:
        """Every deployment that is there and not yet withdrawn."""
        return list(self._known)

    def known(self) -> dict[DeploymentKey, Deployment]:
        """Those that are not being withdrawn."""
        return {key: d for key, d in self._known.items() if key not in self._withdrawals}

    def leaving(self) -> list[DeploymentKey]:
        """Those that are being withdrawn."""
        return list(self._withdrawals)

    def compare(self, present: Collection[DeploymentKey]) -> None:
        """Adopt what is there and not known, and forget what was ready and is there no more.

        What is there an earlier controller deployed, or a call that seemed to have failed. It
        is not deployed again, as Serve would replace every replica, unless it fails.
        """
        for key in present:
            if key not in self._known:
                deployment = Deployment(DeploymentState.LOADING, STARTING, self._clock())
                deployment.adopted_s = self._clock()
                self._known[key] = deployment
                deployment.task = asyncio.create_task(self._deploy(key, deployment, None))
        for key, deployment in list(self._known.items()):
            is_missed = deployment.state is DeploymentState.READY and key not in present
            deployment.num_missed = deployment.num_missed + 1 if is_missed else 0
            # Once may be a list that is older than the deployment.
            if deployment.num_missed >= _MISSED_BEFORE_FORGOTTEN and key not in self._withdrawals:
                logger.warning("%s version %d on %s: application deleted outside Smelt", *key)
                del self._known[key]

    def show_only(self, keys: Iterable[DeploymentKey]) -> None:
        """Know exactly these, which a RayService deployed, as ready."""
        self._known = {key: Deployment(DeploymentState.READY) for key in keys}

    def is_orphaned(self, key: DeploymentKey, num_attached: int) -> bool:
        """Whether the replicas of an adopted one had time to attach here, and none did.

        They have another controller's address, or cannot start as they were deployed.
        """
        deployment = self._known.get(key)
        if deployment is None or deployment.adopted_s is None:
            return False
        if num_attached:
            deployment.adopted_s = None
            return False
        return self._clock() - deployment.adopted_s > _ATTACH_WITHIN_S

    def is_due_again(self, key: DeploymentKey) -> bool:
        """Whether it failed and has waited long enough, which is twice as long each time.

        It is known on, as Serve may hold its replicas still.
        """
        deployment = self._known.get(key)
        if deployment is None or deployment.state is not DeploymentState.UNAVAILABLE:
            return False
        return self._clock() >= deployment.retry_at_s

    def is_loading_on(self, generation: str) -> bool:
        """Whether replicas start there that may not have their place yet."""
        states = (found.state for key, found in self._known.items() if key[2] == generation)
        return DeploymentState.LOADING in states

    def makes_room(self, key: DeploymentKey, waiting: DeploymentKey) -> bool:
        """Whether another deployment has had no room for a while, and has it in place of this."""
        found = self._known.get(waiting)
        # What failed needs more than room.
        if found is None or found.state is not DeploymentState.LOADING:
            return False
        if key not in found.unplaced.gives_way:
            return False
        return self._clock() - found.unplaced_since_s >= _UNPLACED_AFTER_S

    def end_pauses(self, *which: tuple[str, int]) -> None:
        """Let what failed be tried at once: of these models and versions, or everything."""
        for key, deployment in self._known.items():
            if not which or key[:2] in which:
                deployment.retry_at_s = self._clock()

    def state(self, name: str, version: int) -> tuple[DeploymentState, str]:
        """The best state that any generation's deployment of a version has, and a reason.

        The reason is that of the others too: a version that serves on one generation may be
        broken on the next.
        """
        found = {k.generation: d for k, d in self._known.items() if k[:2] == (name, version)}
        if not found:
            return DeploymentState.UNAVAILABLE, self._replicas.absence
        states = {
            # One that is taken up again after its withdrawal is not what was.
            DeploymentState.UNLOADING
            if DeploymentKey(name, version, generation) in self._withdrawals
            else deployment.state
            for generation, deployment in found.items()
        }
        reasons = {g: d.reason for g, d in sorted(found.items()) if d.reason}
        if len(found) == 1:
            reason = "".join(reasons.values())
        else:
            reason = "; ".join(f"on {generation}: {why}" for generation, why in reasons.items())
        return next(state for state in DeploymentState if state in states), reason

    def start(self, key: DeploymentKey, version: ModelVersion, args: dict[str, Any]) -> None:
        """Begin to deploy; a deployment that is being withdrawn is left to a later call.

        Args:
            key: of the deployment.
            version: of the model that is deployed.
            args: of the application, beside model, version, generation and number of replicas.
        """
        if key in self._withdrawals:
            return
        deployment = Deployment(DeploymentState.LOADING, STARTING, self._clock())
        if former := self._known.get(key):
            # Counted over attempts, else the pause between them would not grow.
            deployment.num_failures = former.num_failures
        self._known[key] = deployment
        all_args = args | {
            "model": version.name,
            "version": version.version,
            "generation": key.generation,
            "num_replicas": version.recipe.num_replicas,
        }
        deployment.task = asyncio.create_task(self._deploy(key, deployment, all_args))

    def withdraw(self, key: DeploymentKey) -> None:
        """Begin to drain and remove; a second call does nothing."""
        if key not in self._withdrawals:
            for other, deployment in self._known.items():
                if key in deployment.unplaced.gives_way:
                    message = "%s version %d on %s is withdrawn to free capacity for version %d"
                    logger.warning(message, *key, other.version)
            self._withdrawals[key] = asyncio.create_task(self._withdraw(key))

    def cancel(self) -> None:
        """Follow nothing any more; what Serve was asked for it goes on with."""
        tasks = [deployment.task for deployment in self._known.values() if deployment.task]
        for task in (*tasks, *self._withdrawals.values()):
            task.cancel()

    async def withdrawn(self) -> None:
        """Wait until no withdrawal is under way."""
        await asyncio.gather(*self._withdrawals.values())

    async def _deploy(
        self, key: DeploymentKey, deployment: Deployment, args: dict[str, Any] | None
    ) -> None:
        """Deploy with these arguments, or follow what is deployed, until it is ready."""
        try:
            if args is not None:
                await self._threads.submit(self._replicas.deploy, key, args)
            # A thread for each question, not for the wait: a model may load for minutes, and
            # a few such waits would hold every thread there is.
            if not await self._until_running(key, deployment):
                return
        except SmeltError as error:
            if args is None and await self._is_gone(key):
                # It was adopted by a list that is older than its end.
                self._known.pop(key, None)
                self._on_success()
            else:
                logger.warning("%s version %d on %s is not deployed: %s", *key, error)
                self._note_failure(deployment, str(error))
        except Exception as error:
            # Whatever Serve raises: the model must not be shown as loading without end.
            logger.exception("deploy of %s version %d on %s failed", *key)
            self._note_failure(deployment, str(error))
        else:
            deployment.state = DeploymentState.READY
            deployment.ready_s = self._clock()
            deployment.reason = ""
            deployment.unplaced = Unplaced()
            deployment.num_failures = 0
            logger.info("serving %s version %d on %s", *key)
            self._on_success()
        self._on_change(key.name)

    async def _until_running(self, key: DeploymentKey, deployment: Deployment) -> bool:
        """Wait until it is ready; False when it is withdrawn meanwhile.

        Raises:
            NotReadyError: it never will be, or was not in time.
        """
        pause_s = _STATUS_PERIOD_S
        began_s = deployment.began_s
        while not await self._is_running(key):
            if key in self._withdrawals:
                return False
            if self._clock() - began_s >= _UNPLACED_AFTER_S:
                await self._note_unplaced(key, deployment)
            if self._clock() - began_s >= _READY_WITHIN_S:
                raise NotReadyError(
                    f"its replicas were not ready within {_READY_WITHIN_S:g} s: "
                    f"{deployment.reason}; it is deployed again"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, _SLOWEST_STATUS_PERIOD_S)
        return True

    async def _note_unplaced(self, key: DeploymentKey, deployment: Deployment) -> None:
        """Note why replicas are placed nowhere, once that takes longer than a moment."""
        try:
            unplaced = await self._threads.ask(self._replicas.unplaced, key)
        except Exception as error:
            logger.warning("why %s version %d on %s waits is unknown: %r", *key, error)
            return
        if not deployment.unplaced.words:
            deployment.unplaced_since_s = self._clock()
        has_changed = deployment.unplaced.words != unplaced.words
        deployment.unplaced = unplaced
        if has_changed:
            deployment.reason = unplaced.words or STARTING
            if unplaced.words:
                logger.warning("%s version %d on %s: %s", *key, unplaced.words)
            self._on_change(key.name)

    def unplaced(self, name: str, version: int) -> str:
        """Why replicas of a version are placed nowhere; "" when all are."""
        found = [d.unplaced.words for key, d in self._known.items() if key[:2] == (name, version)]
        return "; ".join(filter(None, found))

    def _note_failure(self, deployment: Deployment, reason: str) -> None:
        deployment.state = DeploymentState.UNAVAILABLE
        deployment.reason = reason
        deployment.num_failures += 1
        wait_s = wait_after(deployment.num_failures, first_s=_FIRST_RETRY_S, most_s=_LAST_RETRY_S)
        deployment.retry_at_s = self._clock() + wait_s

    async def _is_running(self, key: DeploymentKey) -> bool:
        """Read the status; a failed call is no state of the deployment, so it is repeated."""
        try:
            return await self._threads.ask(self._replicas.is_running, key)
        except SmeltError:
            raise
        except Exception as error:
            logger.warning("status of %s version %d on %s is unknown: %r", *key, error)
            await asyncio.sleep(_PAUSE_AFTER_FAULT_S)
            return False

    async def _is_gone(self, key: DeploymentKey) -> bool:
        try:
            return key not in await self._threads.ask(self._replicas.deployed)
        except Exception as error:
            logger.warning("whether %s version %d on %s is there is unknown: %r", *key, error)
            return False

    async def _withdraw(self, key: DeploymentKey) -> None:
        try:
            deployment = self._known.get(key)
            if deployment and deployment.task:
                # It ends soon: it sees the withdrawal, or its own time limit.
                await deployment.task
            await self._threads.ask(self._replicas.remove, key)
            await self._until_gone(key)
        except Exception:
            logger.exception("retiring %s version %d on %s failed; tried again later", *key)
        else:
            self._known.pop(key, None)
            logger.info("retired %s version %d on %s", *key)
            self._on_success()
        finally:
            del self._withdrawals[key]
            self._on_change(key.name)

    async def _until_gone(self, key: DeploymentKey) -> None:
        until_s = self._clock() + _GONE_WITHIN_S
        while key in await self._threads.ask(self._replicas.deployed):
            if self._clock() > until_s:
                raise NotReadyError(f"Serve has its application still after {_GONE_WITHIN_S:g} s")
            await asyncio.sleep(_STATUS_PERIOD_S)
