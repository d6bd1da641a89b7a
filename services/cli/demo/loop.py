"""Follows the demo's model from its publication until nothing is left to be built for it."""

import time
from collections.abc import Callable
from typing import Any

from services.cli.demo.traffic import DemoTraffic
from services.cli.demo.words import (
    best_digest,
    done_words,
    event_words,
    served_digest,
    serving_words,
)
from services.cli.output.progress import StepLine
from services.cli.settings import CliSettings
from services.cli.why.why import model_cases
from services.contracts.errors import NotReadyError
from services.contracts.events import Event, EventKind, EventPosition
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.controller.build.key_status import KeyState
from services.controller.events.serving_events import serving_of
from services.pb import fleet_v1_pb2 as fleet

_PERIOD_S = 0.5
# A better engine is loaded and warmed beside the one in use before it serves.
_CHANGE_S = 20.0
# One that was killed is started again, which takes seconds.
_CONTROLLER_AWAY_S = 120.0
_PLANNED_ANEW = (EventKind.BUILD_STARTED, EventKind.REBUILD_REQUESTED)


class DemoLoop:
    """Prints events, and what serves, as they change.

    Attributes:
        first_answer_s, first_proven_s: seconds after the start until a request was answered, and
            until a proven engine answered; None before.
    """

    def __init__(
        self,
        settings: CliSettings,
        registry: Registry,
        version: ModelVersion,
        look: Callable[[], fleet.FleetSnapshot],
        line: StepLine,
        traffic: DemoTraffic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read yet.

        Args:
            settings: of the commands.
            registry: on the fleet's store.
            version: that is followed.
            look: the fleet as it is now.
            line: keeps a line for each event.
            traffic: sends requests meanwhile.
            clock: in seconds.
        """
        self._settings = settings
        self._registry = registry
        self._version = version
        self._look = look
        self._line = line
        self._traffic = traffic
        self._clock = clock
        self._engines: dict[str, str] = {}
        self._settled_at: float | None = None
        self._away_at: float | None = None
        self.first_answer_s: float | None = None
        self.first_proven_s: float | None = None

    def follow(self, position: EventPosition) -> list[dict[str, Any]]:
        """Return once all that is planned is built, proven or quarantined, and the best serves.

        Args:
            position: events after it are shown.

        Returns:
            What `smelt why` shows of each generation that serves, with why it was quarantined.

        Raises:
            SmeltError: the model cannot serve, or the controller does not answer for long.
        """
        while True:
            self._line.wait(self._traffic.counts().words)
            if snapshot := self._fleet():
                # After the fleet, which plans before it proves: what an event counts is planned.
                position = self._show_events(position, snapshot)
                self._show_serving(snapshot)
                if cases := self._end(snapshot):
                    return cases
            time.sleep(_PERIOD_S)  # the store, which has the events, sends no notifications

    def _fleet(self) -> fleet.FleetSnapshot | None:
        """The fleet now; None while its controller starts again."""
        try:
            snapshot = self._look()
        except NotReadyError:
            now_s = self._clock()
            if self._away_at is None:
                self._away_at = now_s
                self._line.event("the controller does not answer; requests are answered meanwhile")
            if now_s - self._away_at > _CONTROLLER_AWAY_S:
                raise
            return None
        self._away_at = None
        return snapshot

    def _show_events(self, position: EventPosition, snapshot: fleet.FleetSnapshot) -> EventPosition:
        for reached, event in self._registry.events_after(position):
            position = reached
            if event.model != self._version.name:
                continue
            is_proof = event.kind in (EventKind.PROOF_PASSED, EventKind.PROOF_FAILED)
            done = done_words(self._cases(snapshot)) if is_proof else ""
            if words := event_words(event, done):
                self._line.event(words)
        return position

    def _show_serving(self, snapshot: fleet.FleetSnapshot) -> None:
        subject = self._version.name, self._version.version
        served = [e for e in serving_of(snapshot) if (e.model, e.version) == subject]
        # Not by the words: the reason for the fallback changes while it serves on.
        engines = {each.generation: each.key for each in served}
        answered_at = self._traffic.answered_at
        if not engines or engines == self._engines or answered_at is None:
            return
        words = "; ".join(map(serving_words, served))
        if self.first_answer_s is None:
            since_s = self.first_answer_s = self._line.event(
                f"first answer, by {words}", answered_at
            )
        else:
            since_s = self._line.event(f"requests are answered now by {words}")
        if self.first_proven_s is None and served[0].kind is EventKind.ENGINE_SERVING:
            self.first_proven_s = since_s
        self._engines = engines

    def _end(self, snapshot: fleet.FleetSnapshot) -> list[dict[str, Any]]:
        """The cases, once nothing is left to be done; none before."""
        cases = self._settled(snapshot)
        if not cases:
            self._settled_at = None
            return []
        now_s = self._clock()
        self._settled_at = now_s if self._settled_at is None else self._settled_at
        is_late = now_s - self._settled_at > _CHANGE_S
        is_best = all(served_digest(case) == best_digest(case) for case in cases)
        return cases if is_best or is_late else []

    def _settled(self, snapshot: fleet.FleetSnapshot) -> list[dict[str, Any]]:
        """The cases, when nothing is left to be built or proven; none else."""
        is_building = any(build.model_name == self._version.name for build in snapshot.builds)
        if self.first_answer_s is None or is_building:
            return []
        cases = self._cases(snapshot)
        return cases if all(map(_is_settled, cases)) else []

    def _cases(self, snapshot: fleet.FleetSnapshot) -> list[dict[str, Any]]:
        cases = model_cases(self._settings, self._registry, self._version, snapshot)
        return [case | {"given_up": self._given_up(case)} for case in cases if case["replicas"]]

    def _given_up(self, case: dict[str, Any]) -> str:
        """Why a generation gets no plan; "" when it has one, or may get one."""
        if _is_planned(case):
            return ""

        def decides(event: Event) -> bool:
            is_ours = (event.model, event.version) == (self._version.name, self._version.version)
            is_given_up = event.kind is EventKind.QUARANTINED and not event.key
            is_here = event.generation in ("", case["generation"])
            return is_ours and is_here and (is_given_up or event.kind in _PLANNED_ANEW)

        # It may have been quarantined before this demo began.
        for _, event in self._registry.search_events(1, decides).events:
            return event.why if event.kind is EventKind.QUARANTINED else ""
        return ""


def _is_planned(case: dict[str, Any]) -> bool:
    return bool(case["planned"] or case["skipped"])


def _is_settled(case: dict[str, Any]) -> bool:
    """Whether nothing of its plan is left to be built or proven, or it gets none."""
    if not _is_planned(case):
        return bool(case["given_up"])
    return not any(KeyState(key["key_state"]).is_open for key in case["planned"])
