"""On-demand models: those that are asked for get replicas, and the least recently used ones leave.

One that was never asked for is deployed as any other where there is room. Then it stays until a
deployment that waits needs its room, and comes back when it is asked for. When it was used last is
what gateways report; of an earlier controller's time nothing is known, and the start of this one
counts as a use.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain

from services.contracts.model.manifest import ModelVersion
from services.contracts.text.moments import utc_now
from services.controller.deploy.deployment import Deployment, DeploymentState
from services.controller.deploy.deployments import Deployments
from services.controller.interfaces import DeploymentKey
from services.controller.room import Room, RoomRequest
from services.telemetry import catalog
from services.telemetry.recorder import Recorder

logger = logging.getLogger(__name__)

# Not sooner: what is asked for once a second would come and go.
_IDLE_S = 2.0
# Where more models are asked for than there is room for they take turns: one that waits for so
# long has another one leave that has served for a while, though it is in use.
_PATIENCE_S = 5.0
_STAY_S = 10.0
# Longer than requests wait; from then on what has no place yet leaves before others do.
_ASKED_FOR_S = 30.0
# Until others that were never asked for are tried where one had no room.
_FULL_FOR_S = 300.0
# How often to look whether others may leave now, at first and in the end.
_LOOK_S = 0.25
_SLOWEST_LOOK_S = 1.0
# Ray places a replica within a moment where it has room, and shows it about a second later.
_LATE_S = 3.0


class OnDemand:
    """Decides which on-demand deployments are there; used from one event loop."""

    def __init__(
        self,
        deployments: Deployments,
        rooms: Callable[[], Awaitable[Mapping[str, Room]]],
        has_place: Callable[[DeploymentKey], bool],
        on_placed: Callable[[], None],
        *,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        """No model is known yet.

        Args:
            deployments: of all models.
            rooms: asks the fleet what there is, and who holds it.
            has_place: whether replicas of a deployment that loads run already.
            on_placed: called when the last of those that had no place has one.
            recorder: of CONTROLLER_METRICS.
            clock: monotonic seconds.
        """
        self._deployments = deployments
        self._rooms = rooms
        self._has_place = has_place
        self._on_placed = on_placed
        self._recorder = recorder
        self._clock = clock
        self._versions: set[tuple[str, int]] = set()
        self._used_s: dict[str, float] = {}
        # By model and generation: a new version of one that left is not deployed either.
        self._left_s: dict[tuple[str, str], float] = {}
        self._full_until_s: dict[str, float] = {}
        self._why_left: dict[str, str] = {}
        self._loading_s: dict[DeploymentKey, float] = {}
        # When one was seen last that was leaving.
        self._leaving_s = -math.inf
        self._started = asyncio.Event()

    def follow(self, versions: Iterable[ModelVersion]) -> None:
        """Take which versions there are; of others nothing is kept."""
        self._versions = {(v.name, v.version) for v in versions if v.recipe.is_on_demand}
        names = {name for name, _ in self._versions}
        self._used_s = {name: at_s for name, at_s in self._used_s.items() if name in names}
        self._left_s = {key: at_s for key, at_s in self._left_s.items() if key[0] in names}
        self._why_left = {name: why for name, why in self._why_left.items() if name in names}

    def note_use(self, model: str, seconds_ago: float) -> None:
        """Take when the last request for a model was."""
        self._used_s[model] = max(self._clock() - seconds_ago, self._used(model))

    def is_due(self, key: DeploymentKey) -> bool:
        """Whether a deployment that is not there is to be; always where it is not on demand."""
        if key[:2] not in self._versions:
            return True
        left_s = self._left_s.get((key.name, key.generation), -math.inf)
        if self._used(key.name) > left_s:
            return True
        if math.isfinite(left_s) or self._clock() < self._full_until_s.get(key.generation, 0.0):
            return False
        # For the first time one after the other: the next may have no room.
        return all(each.generation != key.generation for each in self._without_place())

    def note_start(self, key: DeploymentKey) -> None:
        """Take that a deployment was started; where it has no room others leave."""
        if key[:2] in self._versions:
            self._loading_s.setdefault(key, self._clock())
        self._started.set()

    def note_change(self, model: str) -> None:
        """Record how loads of a model ended, after a change of its deployments."""
        known = self._deployments.known()
        for key in [key for key in self._loading_s if key.name == model]:
            found = known.get(key)
            if found is None or found.state is not DeploymentState.LOADING:
                ready = found is not None and found.state is DeploymentState.READY
                outcome = "ready" if ready else "failed" if found else "withdrawn"
                took_s = self._clock() - self._loading_s.pop(key)
                labels = {"model": key.name, "version": str(key.version), "outcome": outcome}
                self._recorder.observe(catalog.ON_DEMAND_LOAD_DURATION, took_s, **labels)

    def standby_words(self, name: str, version: int) -> str:
        """Why an on-demand version has no deployment; "" for one that has, or is none."""
        if (name, version) not in self._versions:
            return ""
        if any(key[:2] == (name, version) for key in self._deployments.all()):
            return ""
        return "on demand: not loaded; its next request loads it" + self._why_left.get(name, "")

    async def run(self) -> None:
        """Make room while deployments wait for it, until cancelled."""
        pause_s = _SLOWEST_LOOK_S
        is_waiting = False
        while True:
            try:
                was_waiting = is_waiting
                is_waiting = await self.make_room()
                if was_waiting and not is_waiting:
                    self._on_placed()
            except Exception as error:
                is_waiting = True
                logger.warning("which on-demand models can be evicted is unknown: %r", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s if is_waiting else None):
                    await self._started.wait()
            pause_s = min(1.2 * pause_s, _SLOWEST_LOOK_S)
            if self._started.is_set():
                self._started.clear()
                pause_s = _LOOK_S

    async def make_room(self) -> bool:
        """Have those leave that have to; whether any deployment waits that others may leave for.

        Raises whatever the fleet does.
        """
        request = self._request()
        if request is None:
            return False
        rooms = await self._rooms()
        for key in chain.from_iterable(room.must_leave(request) for room in rooms.values()):
            if found := self._deployments.known().get(key):
                self._leave(key, found, request)
        return True

    def _leave(self, key: DeploymentKey, deployment: Deployment, request: RoomRequest) -> None:
        now_s = self._clock()
        last_s = max(self._last_s(key, deployment), deployment.began_s)
        idle = f"after {now_s - last_s:.0f} s without a request"
        for_whom = next(w for w in (*request.waiting, key) if w.generation == key.generation)
        why = f"{for_whom.name} version {for_whom.version} on {key.generation} had no capacity"
        self._left_s[key.name, key.generation] = now_s
        self._leaving_s = now_s
        self._why_left[key.name] = f" (evicted {utc_now():%Y-%m-%d %H:%M:%S} UTC, as {why})"
        logger.info("%s version %d on %s is evicted %s: %s", *key, idle, why)
        if key in request.modest:
            self._full_until_s[key.generation] = now_s + _FULL_FOR_S
        else:
            metric = catalog.ON_DEMAND_EVICTIONS
            self._recorder.count(metric, model=key.name, version=str(key.version))
        self._deployments.withdraw(key)

    def _request(self) -> RoomRequest | None:
        """What waits and what may leave; None where nothing waits that others could leave for."""
        if not self._versions:
            return None
        known = self._deployments.known()
        loading = self._without_place()
        modest = [key for key in loading if key[:2] in self._versions and not self._is_asked(key)]
        waiting = [key for key in loading if key not in modest]
        if not loading:
            return None
        now_s = self._clock()
        began_s = min(known[key].began_s for key in waiting or loading)
        leaving = self._deployments.leaving()
        if leaving:
            self._leaving_s = now_s
        return RoomRequest(
            waiting=waiting,
            modest=modest,
            may_leave=self._may_leave(is_patient=now_s - began_s < _PATIENCE_S),
            leaving=leaving,
            # What has left frees its room only now: before that Ray could place nothing.
            is_late=now_s - max(began_s, self._leaving_s) >= _LATE_S,
        )

    def _without_place(self) -> list[DeploymentKey]:
        """Those that load and of which no replica runs yet, the first to begin first."""
        known = sorted(self._deployments.known().items(), key=lambda item: item[1].began_s)
        loading = [key for key, each in known if each.state is DeploymentState.LOADING]
        return [key for key in loading if not self._has_place(key)]

    def _may_leave(self, *, is_patient: bool) -> list[DeploymentKey]:
        """Those that serve and may leave, the least recently used first."""
        now_s = self._clock()
        found = []
        for key, each in self._deployments.known().items():
            if key[:2] not in self._versions or each.state is DeploymentState.LOADING:
                continue
            is_idle = now_s - self._last_s(key, each) >= _IDLE_S
            had_its_turn = not is_patient and now_s - each.ready_s >= _STAY_S
            if is_idle or had_its_turn or each.state is DeploymentState.UNAVAILABLE:
                found.append((self._last_s(key, each), key))
        return [key for _, key in sorted(found)]

    def _last_s(self, key: DeploymentKey, deployment: Deployment) -> float:
        """When it was used last; what failed never was."""
        if deployment.state is DeploymentState.UNAVAILABLE:
            return -math.inf
        return max(self._used(key.name), deployment.ready_s or deployment.began_s)

    def _is_asked(self, key: DeploymentKey) -> bool:
        return self._clock() - self._used(key.name) < _ASKED_FOR_S

    def _used(self, model: str) -> float:
        return self._used_s.get(model, -math.inf)
