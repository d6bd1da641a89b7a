"""Has versions with `calibration: traffic` calibrated, or asks for it, as their samples say."""

import logging
from collections.abc import Callable, Iterable

from services.contracts.errors import SmeltError
from services.contracts.events import Event, EventKind
from services.contracts.model.manifest import ModelVersion
from services.contracts.registry.registry import Registry

logger = logging.getLogger(__name__)

_PERIOD_S = 60.0


class TrafficWatch:
    """Looks at samples now and then, for the one controller that builds."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        """Nothing is looked at yet; `clock` gives monotonic seconds."""
        self._registry = registry
        self._clock = clock
        self._look_after_s = -_PERIOD_S
        # Samples are read only when there are others than at the last look.
        self._seen: dict[str, tuple[int, list[str]]] = {}

    def look(self, newest: Iterable[ModelVersion]) -> list[Event]:
        """Calibrate what may be calibrated, and return an event for each that waits for people."""
        if self._clock() < self._look_after_s:
            return []
        self._look_after_s = self._clock() + _PERIOD_S
        events = []
        for version in newest:
            try:
                events += self._looked_at(version)
            except SmeltError as error:
                logger.warning("%s is not calibrated with traffic: %s", version.name, error)
        return events

    def _looked_at(self, version: ModelVersion) -> list[Event]:
        calibration = version.recipe.calibration
        if calibration is None or calibration.traffic is None:
            return []
        seen = (version.version, list(self._registry.sample_windows(version.name)))
        if self._seen.get(version.name) == seen:
            return []
        # Here, as a controller of which no model is sampled needs no numpy.
        from services.contracts.traffic.recalibration import publish_calibrated, traffic_state

        state = traffic_state(self._registry, version)
        self._seen[version.name] = seen
        if not state.is_due:
            return []
        if version.calibration is None or calibration.traffic.rebuild:
            publish_calibrated(self._registry, version)
            return []
        event = Event(
            kind=EventKind.TRAFFIC_DRIFTED,
            model=version.name,
            version=version.version,
            mark=f"drift {version.name}/{version.version}",
            why=f"{state.words}; calibrate it anew: smelt samples calibrate {version.name}",
        )
        return [event]
