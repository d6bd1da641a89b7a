"""Checks of all external models, each at its own pace, and their state in the fleet's."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from services.contracts.errors import SmeltError
from services.contracts.external.dial import http_session
from services.contracts.external.external_model import ExternalModel
from services.contracts.external.external_token import ExternalToken
from services.contracts.process.backoff import Backoff
from services.controller.api.fleet_state import FleetState
from services.controller.deploy.deployment import DeploymentState
from services.controller.external.external_check import ExternalCheck
from services.pb import fleet_v1_pb2 as fleet

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
# A question costs the server a token, or a line in its log.
ASK_EVERY_S: Final = 60.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
# One that served is given up for a fault that is still there at the next look.
_NUM_FAULTS: Final = 2


class WantedExternal(NamedTuple):
    """An external version as the store has it; see `fleet.ServedModel`."""

    model: ExternalModel
    weight: float
    is_unloaded: bool


class ExternalWatch:
    """Keeps a check running for each external version that is wanted; use it in the event loop."""

    def __init__(
        self,
        state: FleetState,
        token_dir: Path | None = None,
        *,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        """Check nothing yet.

        Args:
            state: shows what is found.
            token_dir: where tokens are; None without any.
            check_every_s: pause between two looks at a server where nothing is wrong.
        """
        self._state = state
        self._token_dir = token_dir
        self._check_every_s = check_every_s
        self._session: aiohttp.ClientSession | None = None
        self._wanted: dict[tuple[str, int], WantedExternal] = {}
        self._found: dict[tuple[str, int], tuple[DeploymentState, str]] = {}
        self._checks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def follow(self, wanted: Iterable[WantedExternal]) -> None:
        """Take what the store has now: begin and end checks, and show all of them."""
        self._wanted = {(each.model.name, each.model.version): each for each in wanted}
        loaded = {key for key, each in self._wanted.items() if not each.is_unloaded}
        for key in self._checks.keys() - loaded:
            self._checks.pop(key).cancel()
            self._found.pop(key, None)
        for shown in self._state.models():
            if shown.external_json and (shown.name, shown.version) not in self._wanted:
                self._state.remove_model(shown.name, shown.version)
        for key in loaded - self._checks.keys():
            self._checks[key] = asyncio.create_task(self._check(key), name=f"check {key}")
        for key in self._wanted:
            self._show(key)

    async def close(self) -> None:
        """End all checks."""
        for check in self._checks.values():
            check.cancel()
        if self._session:
            await self._session.close()

    async def _check(self, key: tuple[str, int]) -> None:
        model = self._wanted[key].model
        self._session = self._session or http_session()
        check = ExternalCheck(model, self._session)
        token = ExternalToken(model, self._token_dir)
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        num_faults = 0
        ask_at_s = time.monotonic()
        while True:
            is_asking = bool(num_faults) or time.monotonic() >= ask_at_s
            fault = await self._fault(check, token, is_asking=is_asking)
            if is_asking:
                ask_at_s = time.monotonic() + ASK_EVERY_S
            num_faults = num_faults + 1 if fault else 0
            is_ready = self._found.get(key, ("",))[0] is DeploymentState.READY
            if not fault or not is_ready or num_faults >= _NUM_FAULTS:
                state = DeploymentState.UNAVAILABLE if fault else DeploymentState.READY
                self._note(key, state, fault)
            if fault:
                await backoff.pause()
            else:
                backoff.reset()
                await asyncio.sleep(self._check_every_s)

    async def _fault(self, check: ExternalCheck, token: ExternalToken, *, is_asking: bool) -> str:
        try:
            return await check.fault(token.headers(), is_asking=is_asking)
        except SmeltError as error:
            return f"refusing: {error}"
        except Exception as error:
            # A server answers what it likes: the next look comes whatever that was.
            logger.exception("the check of an external server failed")
            return f"wrong protocol: {error!r}"

    def _note(self, key: tuple[str, int], state: DeploymentState, fault: str) -> None:
        if self._found.get(key) != (state, fault):
            words = f"is {state}" + (f": {fault}" if fault else "")
            logger.info("external model %s version %d %s", *key, words)
        self._found[key] = (state, fault)
        with suppress(KeyError):  # withdrawn meanwhile
            self._show(key)

    def _show(self, key: tuple[str, int]) -> None:
        wanted = self._wanted[key]
        state, reason = self._found.get(key, (DeploymentState.LOADING, "it is being checked"))
        if wanted.is_unloaded:
            state, reason = DeploymentState.UNAVAILABLE, "unloaded"
        shown = fleet.ServedModel(
            name=wanted.model.name,
            version=wanted.model.version,
            external_json=wanted.model.canonical_json(),
            state=state,
            reason=reason,
            weight=wanted.weight,
            is_unloaded=wanted.is_unloaded,
        )
        self._state.set_model(shown)
