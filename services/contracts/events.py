"""Events of a fleet: who did what, to which subject, why, and how long after the change.

events/<day>/<n>.json      Event; <day> is 2026-11-21, UTC
event-days/<day>.json      EventDay: which days there are, so that no reader lists all events
event-checkpoints/<n>.json EventCheckpoint: what the events up to a point amount to
"""

from enum import StrEnum

from pydantic import Field

from services.contracts.model.document import Document


class EventKind(StrEnum):
    """What happened; a closed set."""

    GENERATION_APPEARED = "generation_appeared"
    GENERATION_GONE = "generation_gone"
    TOOLCHAIN_CHANGED = "toolchain_changed"
    MODEL_PUBLISHED = "model_published"
    RECIPE_CHANGED = "recipe_changed"
    MODEL_LOADED = "model_loaded"
    MODEL_UNLOADED = "model_unloaded"
    MODEL_REMOVED = "model_removed"
    WEIGHTS_CHANGED = "weights_changed"
    BUILD_STARTED = "build_started"
    BUILD_WAITING = "build_waiting"
    BUILD_FINISHED = "build_finished"
    BUILD_FAILED = "build_failed"
    QUARANTINED = "quarantined"
    PROOF_PASSED = "proof_passed"
    PROOF_FAILED = "proof_failed"
    ENGINES_COMPARED = "engines_compared"
    FALLBACK_SERVING = "fallback_serving"
    ENGINE_SERVING = "engine_serving"
    REPLICAS_UNPLACED = "replicas_unplaced"
    REPLICA_LOST = "replica_lost"
    REPLICA_RESTORED = "replica_restored"
    EXTERNAL_READY = "external_ready"
    EXTERNAL_FAILED = "external_failed"
    SERVING_ENDED = "serving_ended"
    REBUILD_REQUESTED = "rebuild_requested"
    TRAFFIC_DRIFTED = "traffic_drifted"


class Event(Document):
    """One thing that happened.

    Attributes:
        at: ISO 8601, UTC, milliseconds; "" until it is recorded.
        actor: who did it, or who observed it: `controller`, or a person.
        model, version, generation: the subject; "" and 0 where it has none.
        key: digest of a build key, a node class or a master; "" for none.
        mark: distinguishes this event from an earlier one of its subject (a record's number, a
            proof's time, a task's name).
        why: in words.
        seconds_since_change: from the change that led to it; None where there was none.
    """

    at: str = ""
    actor: str = "controller"
    kind: EventKind
    model: str = ""
    version: int = 0
    generation: str = ""
    key: str = ""
    mark: str = ""
    why: str = ""
    seconds_since_change: float | None = None

    @property
    def words(self) -> str:
        """Why, and how long after the change, for people."""
        seconds = self.seconds_since_change
        after = "" if seconds is None else f" ({seconds:.1f} s after the change)"
        return f"{self.why or '-'}{after}"

    def is_about(self, model: str) -> bool:
        """Whether it concerns a model, or any for "": what has none, as hardware, concerns all."""
        return not model or self.model in ("", model)


class EventPosition(Document):
    """A place among the events: after event `number` of `day`; ("", 0) is its beginning."""

    day: str = ""
    number: int = Field(default=0, ge=0)


class EventDay(Document):
    """A day that has events."""

    day: str


class EventCheckpoint(Document):
    """What all events up to a position amount to: enough to know what is new.

    Attributes:
        last: the last event of each subject that is not over, by subject, without its words; see
            `services.controller.events.event_state`.
    """

    position: EventPosition = EventPosition()
    last: dict[str, Event] = {}
