"""The event trail: who did what, to which subject, why, and how long after the change.

events/<day>/<n>.json      Event; <day> is 2026-11-21, UTC
event-days/<day>.json      EventDay: which days there are, so that nobody lists all events
event-folds/<n>.json       TrailFold: what the events up to a point amount to
"""

from enum import StrEnum

from pydantic import Field

from services.contracts.document import Document


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
    SERVING_ENDED = "serving_ended"
    REBUILD_REQUESTED = "rebuild_requested"


class Event(Document):
    """One thing that happened.

    Attributes:
        at: ISO 8601, UTC, milliseconds.
        actor: who did it, or who saw it: `controller`, or a person.
        model, version, generation: the subject; "" and 0 where it has none.
        key: digest of a build key, a node class or a master; "" for none.
        mark: tells this event from a repetition of it (a record's number, a proof's time, a
            task's name).
        why: in words.
        seconds_since_change: from the change that led to it; None where there was none.
    """

    at: str
    actor: str = "controller"
    kind: EventKind
    model: str = ""
    version: int = 0
    generation: str = ""
    key: str = ""
    mark: str = ""
    why: str = ""
    seconds_since_change: float | None = None


class EventPosition(Document):
    """A place in the trail: after event `number` of `day`; ("", 0) is its beginning."""

    day: str = ""
    number: int = Field(default=0, ge=0)


class EventDay(Document):
    """A day that has events."""

    day: str


class TrailFold(Document):
    """What all events up to a position amount to: enough to tell what is news.

    Attributes:
        node_classes: by present generation, the mark of all its classes of nodes.
        versions: newest version of each model.
        masters: digest of that version's master, by model.
        changed_at: time of the last change, by generation, by model, and by
            `rebuild <model>` and `load <model>`: the latter also of weights and removals.
        engines: engines told of, each with the time of the newest proof told of, "" for none.
        num_records: build records told of, by key digest.
        num_rebuilds: rebuild requests told of, by model.
        num_serving_changes: loads and unloads told of, by model.
        unloaded: the models that were unloaded last.
        num_weight_changes: changes of weights told of, by model.
        weights: versions that share requests by weights, by model.
        removed: versions told of as removed, by model.
        joint_runs: by `model/version/generation`, when the newest joint run told of was.
        tasks: marks of the build tasks told of last: that they began, that they wait.
        quarantined: by mark, the model and generation that it is for.
        serving: by `model/version/generation`, the digest of an engine or `fallback`.
    """

    position: EventPosition = EventPosition()
    node_classes: dict[str, str] = {}
    versions: dict[str, int] = {}
    masters: dict[str, str] = {}
    changed_at: dict[str, str] = {}
    engines: dict[str, str] = {}
    num_records: dict[str, int] = {}
    num_rebuilds: dict[str, int] = {}
    num_serving_changes: dict[str, int] = {}
    unloaded: tuple[str, ...] = ()
    num_weight_changes: dict[str, int] = {}
    weights: dict[str, tuple[int, ...]] = {}
    removed: dict[str, tuple[int, ...]] = {}
    joint_runs: dict[str, str] = {}
    tasks: tuple[str, ...] = ()
    quarantined: dict[str, tuple[str, str]] = {}
    serving: dict[str, str] = {}
