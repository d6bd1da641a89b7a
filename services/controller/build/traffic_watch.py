"""Has versions with `calibration: traffic` calibrated, or asks for it, as their samples say."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from services.contracts.events import Event, EventKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry
from services.contracts.registry.sample_windows import ended_windows
from services.contracts.text.moments import timestamp
from services.controller.build.retries import Retries

_PERIOD_S = 60.0
_LONGEST_PAUSE_S = 3600.0


class TrafficWatch:
    """Looks at samples now and then, for the one controller that builds."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        """Nothing is looked at yet; `clock` gives monotonic seconds."""
        self._registry = registry
        self._clock = clock
        self._look_after_s = -_PERIOD_S
        # Samples are read only when there are others than at the last look.
        self._seen: dict[str, tuple[int, list[str]]] = {}
        self._retries = Retries(clock, first_s=_PERIOD_S, most_s=_LONGEST_PAUSE_S)

    def look(self, newest: Iterable[ModelVersion]) -> list[Event]:
        """Calibrate what may be calibrated, and return an event for each that waits for people."""
        if self._clock() < self._look_after_s:
            return []
        self._look_after_s = self._clock() + _PERIOD_S
        events = []
        failed = []
        for version in newest:
            name = f"{version.name} version {version.version}"
            try:
                if self._retries.may_try(name):
                    events += self._looked_at(version)
                else:
                    failed.append(name)
            # Of whatever is in the store of one model: the others are looked at all the same.
            except Exception as error:
                self._retries.note(name, f"{name} is not calibrated with traffic: {error}")
                failed.append(name)
        self._retries.keep(failed)
        return events

    def _looked_at(self, version: ModelVersion) -> list[Event]:
        asked = version.recipe.calibration.traffic if version.recipe.calibration else None
        if asked is None:
            return []
        windows = ended_windows(self._registry.sample_windows(version.name))
        seen = (version.version, list(windows))
        if self._seen.get(version.name) == seen:
            return []
        # Here, as a controller of which no model is sampled needs no numpy.
        from services.contracts.traffic.recalibration import publish_calibrated, traffic_state

        state = traffic_state(self._registry, version)
        if not state.is_due:
            self._seen[version.name] = seen
            return []
        earliest = _earliest(version, asked.rebuild_after_h)
        is_time = max(window.ends_at for window in windows.values()) >= earliest
        if version.calibration is None or (asked.rebuild and is_time):
            # Where the store fails it is tried again, also without newer samples.
            publish_calibrated(self._registry, version)
            return []
        self._seen[version.name] = seen
        when = f", or wait for {earliest}" if asked.rebuild else ""
        event = Event(
            kind=EventKind.TRAFFIC_DRIFTED,
            model=version.name,
            version=version.version,
            mark=f"drift {version.name}/{version.version}",
            why=f"{state.words}; calibrate it anew: smelt samples calibrate {version.name}{when}",
        )
        return [event]


def _earliest(version: ModelVersion, hours: float) -> str:
    """When the newest samples must end, at least, for a controller to publish the next version."""
    if version.traffic is None:
        return ""
    last = datetime.fromisoformat(version.traffic.ends_at)
    return timestamp(last + timedelta(hours=hours))
