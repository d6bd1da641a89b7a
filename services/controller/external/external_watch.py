"""Checks of all external models, each at its own pace, and their state in the fleet's.

Those that Ray Serve or Kubernetes is to run are deployed, and are checked as others once they run.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from services.contracts.errors import ExternalServerError, NotReadyError
from services.contracts.external.dial import http_session, one_line, token_headers
from services.contracts.external.external_model import ExternalModel, Starter
from services.contracts.process.backoff import Backoff
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.deployment import DeploymentState
from services.controller.deploy.fleet_threads import FleetThreads
from services.controller.external.external_check import ExternalFault, found_fault
from services.controller.interfaces import ServeApplications
from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
# A question costs the server a token, or a line in its log.
ASK_EVERY_S: Final = 60.0
LOADING_EVERY_S: Final = 3.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_Key = tuple[str, int]
_Found = tuple[DeploymentState, str]
_UNCHECKED: Final[_Found] = (DeploymentState.LOADING, "it is being checked")
_NOT_STARTED: Final = {
    Starter.RAY: (
        "this fleet runs no applications: set SMELT_CONTROLLER_SERVE_APPS=true where it is "
        "started; where a RayService places replicas, have that deploy it, and add its URL"
    ),
    Starter.KUBERNETES: (
        "this fleet runs no Deployments of models; wanted a controller on Kubernetes "
        "(SMELT_CONTROLLER_PLACEMENT=rayservice) whose overlay lists the component model-servers: "
        "add that, or start the server yourself and add its URL without k8s+"
    ),
}


class WantedExternal(NamedTuple):
    """An external version as the store has it; see `fleet.ServedModel`."""

    model: ExternalModel
    weight: float
    is_unloaded: bool


class ExternalWatch:
    """Keeps a check running for each external version that is wanted; use it in the event loop.

    Attributes:
        fault: why servers that are to run do not, or others still do; "" without.
    """

    def __init__(
        self,
        state: FleetState,
        token_dir: Path | None = None,
        check_every_s: float = CHECK_EVERY_S,
        apps: ServeApplications | None = None,
        *,
        runs_apps: bool = False,
    ) -> None:
        """Check nothing yet.

        Args:
            state: shows what is found.
            token_dir: where tokens are; None without any.
            check_every_s: pause between two looks at a server where nothing is wrong.
            apps: runs those that are applications; None where none can be.
            runs_apps: have them run; otherwise those that an earlier controller left are ended.
        """
        self._state = state
        self._token_dir = token_dir
        self._check_every_s = check_every_s
        self._apps = apps
        self.fault = ""
        # An earlier controller may have left some.
        self._has_apps = apps is not None
        self._starter = apps.starter if apps and runs_apps else None
        # Looks at applications, each of which may wait for the proxy, keep no change waiting.
        self._threads = FleetThreads()
        self._applying = FleetThreads()
        self._session: aiohttp.ClientSession | None = None
        self._wanted: dict[_Key, WantedExternal] = {}
        self._found: dict[_Key, _Found] = {}
        # Applications that run, as they are asked.
        self._running: dict[_Key, ExternalModel] = {}
        self._checks: dict[_Key, asyncio.Task[None]] = {}

    async def follow(self, wanted: Iterable[WantedExternal], unread: Collection[str] = ()) -> None:
        """Take what the store has now: begin and end checks, and show all of them.

        The applications of names that the store cannot tell of now are left running.
        """
        self._wanted = {(each.model.name, each.model.version): each for each in wanted}
        loaded = {key for key, each in self._wanted.items() if not each.is_unloaded}
        for key in self._checks.keys() - loaded:
            self._checks.pop(key).cancel()
            self._found.pop(key, None)
            self._running.pop(key, None)
        for shown in self._state.models():
            if shown.external_json and (shown.name, shown.version) not in self._wanted:
                self._state.remove_model(shown.name, shown.version)
        for key in loaded - self._checks.keys():
            self._checks[key] = asyncio.create_task(self._check(key), name=f"check {key}")
        for key in self._wanted:
            self._show(key)
        models = [self._wanted[key].model for key in sorted(loaded)]
        apps = [model for model in models if model.starter and model.starter is self._starter]
        given = (apps, unread) if self._starter else ([], ())
        self.fault = ""
        if self._apps and (given[0] or self._has_apps):
            try:
                self._has_apps = await self._applying.ask(self._apps.apply, *given)
            except Exception as error:
                # Replicas are deployed all the same, and the next sync tries again.
                self.fault = f"servers of external models: {error}"
                logger.exception("the servers of external models are not deployed")

    async def close(self) -> None:
        """End all checks."""
        for check in self._checks.values():
            check.cancel()
        self._threads.close()
        self._applying.close()
        if self._session:
            await self._session.close()

    async def _check(self, key: _Key) -> None:
        """Check one until cancelled; one that served fails by two faults in a row."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        had_fault = False
        ask_at_s = time.monotonic()
        while True:
            is_asking = had_fault or time.monotonic() >= ask_at_s
            was = self._found.get(key, _UNCHECKED)
            now = await self._look(key, is_asking=is_asking, had_fault=had_fault)
            if is_asking:
                ask_at_s = time.monotonic() + ASK_EVERY_S
            is_ready = now[0] is DeploymentState.READY
            if is_ready or had_fault or was[0] is not DeploymentState.READY:
                self._found[key] = now
                if now != was:
                    logger.info("external model %s version %d is %s %s", *key, *now)
                self._show(key)
            had_fault = not is_ready
            if now[0] is DeploymentState.UNAVAILABLE:
                await backoff.pause()
                continue
            backoff.reset()
            # Neither Ray Serve nor a Deployment's list has an event of one that runs.
            await asyncio.sleep(self._check_every_s if is_ready else LOADING_EVERY_S)

    async def _look(self, key: _Key, *, is_asking: bool, had_fault: bool) -> _Found:
        """What is found now; an application is looked for again after a fault."""
        model = self._wanted[key].model
        if model.starter and (had_fault or key not in self._running):
            try:
                if self._apps is None or self._starter is not model.starter:
                    raise ExternalServerError(_NOT_STARTED[model.starter])
                self._running[key] = await self._threads.ask(self._apps.find, model)
            except ExternalServerError as error:
                return DeploymentState.UNAVAILABLE, f"{ExternalFault.NOT_DEPLOYED.value}: {error}"
            except NotReadyError as error:
                return DeploymentState.LOADING, str(error)
            except Exception as error:  # Ray's own
                return DeploymentState.LOADING, f"what runs it cannot be asked: {error!r}"
        fault = await self._fault(self._running.get(key, model), is_asking=is_asking)
        return (DeploymentState.UNAVAILABLE, fault) if fault else (DeploymentState.READY, "")

    async def _fault(self, model: ExternalModel, *, is_asking: bool) -> str:
        self._session = self._session or http_session()
        try:
            headers = token_headers(model, self._token_dir)
            return await found_fault(model, self._session, headers, is_asking=is_asking)
        except ExternalServerError as error:
            return f"{ExternalFault.REFUSING.value}: {error}"
        except Exception as error:
            # A server answers what it likes: the next look comes whatever that was.
            logger.exception("the check of %s failed", model.words)
            return f"{ExternalFault.WRONG_PROTOCOL.value}: {one_line(repr(error))}"

    def _show(self, key: _Key) -> None:
        model, weight, is_unloaded = self._wanted[key]
        model = self._running.get(key, model)
        state, reason = self._found.get(key, _UNCHECKED)
        if is_unloaded:
            state = DeploymentState.UNAVAILABLE
            reason = "unloaded"
        shown = fleet.ServedModel(
            name=model.name,
            version=model.version,
            external_json=model.without_secrets.canonical_json(),
            state=state,
            reason=reason,
            weight=weight,
            is_unloaded=is_unloaded,
        )
        self._state.set_model(shown)
