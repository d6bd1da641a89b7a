"""What the events so far amount to: the last one of each subject. Pure.

An observation is new when it differs from that, so a controller that starts again neither repeats
an event nor loses one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from services.contracts.events import Event, EventCheckpoint, EventKind, EventPosition

_ANY_MODEL = ""

# Of what happens once and is over: build tasks, lost replicas, reasons for which none is placed.
_MAX_ONCE: Final = 1000
_RECORD_MARK: Final = "record "
_PLACE: Final = "{0.model}/{0.version}/{0.generation}"
_SUBJECTS: Final = {
    EventKind.GENERATION_APPEARED: "generation {0.generation}",
    EventKind.TOOLCHAIN_CHANGED: "generation {0.generation}",
    EventKind.GENERATION_GONE: "generation {0.generation}",
    EventKind.MODEL_PUBLISHED: "model {0.model}",
    EventKind.RECIPE_CHANGED: "model {0.model}",
    EventKind.MODEL_LOADED: "load {0.model}",
    EventKind.MODEL_UNLOADED: "load {0.model}",
    EventKind.WEIGHTS_CHANGED: "weights {0.model}",
    EventKind.MODEL_REMOVED: "removal {0.model}/{0.version}",
    EventKind.REBUILD_REQUESTED: "rebuild {0.model}",
    EventKind.TRAFFIC_DRIFTED: "once {0.mark}",
    EventKind.BUILD_STARTED: "once {0.mark}",
    EventKind.BUILD_WAITING: "once {0.mark}",
    EventKind.BUILD_FINISHED: "engine {0.key}",
    EventKind.BUILD_FAILED: "record {0.key}",
    EventKind.PROOF_PASSED: "proof {0.key}",
    EventKind.PROOF_FAILED: "proof {0.key}",
    EventKind.QUARANTINED: "quarantined {0.mark}",
    EventKind.ENGINES_COMPARED: f"joint {_PLACE}",
    EventKind.FALLBACK_SERVING: f"serving {_PLACE}",
    EventKind.ENGINE_SERVING: f"serving {_PLACE}",
    EventKind.EXTERNAL_READY: f"external {_PLACE}",
    EventKind.EXTERNAL_FAILED: f"external {_PLACE}",
    EventKind.SERVING_ENDED: f"serving {_PLACE}",
    EventKind.REPLICAS_UNPLACED: "once {0.mark}",
    EventKind.REPLICA_LOST: "once {0.mark}",
    EventKind.REPLICA_RESTORED: "once {0.mark}",
}
# What other events follow from.
_CHANGES: Final = {"generation", "model", "removal", "load", "weights", "rebuild"}
# What such an event may end.
_ENDING: Final = ("serving", "joint", "quarantined")
# Marks of these begin with a number.
_NUMBERED: Final = {"load", "weights", "rebuild", "record"}
# Of keys: of a model that is removed no more is to come, and a fleet builds keys without end.
_OF_KEYS: Final = ("engine", "proof", "quarantined")
_T = TypeVar("_T")


def record_mark(number: int) -> str:
    """The mark of the event of a build record, by its number from 1."""
    return f"{_RECORD_MARK}{number}"


def subject_of(event: Event) -> str:
    """What an event is of: the next one of the same subject takes its place."""
    if event.mark.startswith(_RECORD_MARK):
        return f"record {event.key}"
    if event.kind is EventKind.BUILD_FAILED:  # of a task that made no plan
        return f"once {event.mark}"
    return _SUBJECTS[event.kind].format(event)


class EventState:
    """The last event of each subject, as far as later ones depend on it."""

    def __init__(self, checkpoint: EventCheckpoint | None = None) -> None:
        """Begin with a checkpoint, or before the first event."""
        self.position = checkpoint.position if checkpoint else EventPosition()
        self._last = LastEvents(checkpoint.last if checkpoint else {})

    def checkpoint(self) -> EventCheckpoint:
        """All of it, to be kept."""
        return EventCheckpoint(position=self.position, last=self._last.all())

    def apply(self, event: Event) -> None:
        """Take in one more event; raises ValueError for a mark that cannot be parsed."""
        subject = subject_of(event)
        what = kind_of_subject(subject)
        if what in _NUMBERED:
            _number(event)
        if what in _CHANGES:
            # Of all models when the event has none.
            known = [each for kind in _ENDING for each in self._last.of(kind, event.model).items()]
            for each in [each for each, last in known if self._ends(event, each, last)]:
                self._last.remove(each)
        if event.kind is EventKind.BUILD_FINISHED:
            self._last.remove(f"quarantined {event.key}")
        if event.kind in (EventKind.GENERATION_GONE, EventKind.SERVING_ENDED):
            self._last.remove(subject)
        else:
            # Only marks and keys are compared later; a checkpoint holds one event of each subject.
            self._last.put(subject, event.model_copy(update={"why": ""}))
        if what == "removal" and self._is_gone(event.model):
            for each in [each for kind in _OF_KEYS for each in self._last.of(kind, event.model)]:
                self._last.remove(each)
        if what == "once":
            self._forget_oldest()

    def last(self, event: Event) -> Event | None:
        """The last event of the same subject; None when there is none."""
        return self._last.get(subject_of(event))

    def new(self, events: Iterable[Event]) -> Iterator[Event]:
        """Those whose last event has another mark or engine."""
        for event in events:
            last = self.last(event)
            if last is None or (last.mark, last.key) != (event.mark, event.key):
                yield event

    def unrecorded(self, what: str, name: str, documents: Sequence[_T]) -> Iterator[tuple[int, _T]]:
        """Those of an append-only list that have no event yet, each with its number from 1.

        Args:
            what: `rebuild`, `load` or `weights`, each of a model; `record` of a key.
            name: of the model, or the key's digest.
            documents: the whole list.
        """
        last = self._last.get(f"{what} {name}")
        known = _number(last) if last else 0
        return enumerate(documents[known:], start=known + 1)

    def classes(self) -> dict[str, str]:
        """By present generation, the mark of all its classes of nodes."""
        return {last.generation: last.mark for last in self._last.of("generation").values()}

    def newest(self, model: str) -> Event | None:
        """The publication of a model's newest version."""
        return self._last.get(f"model {model}")

    def is_removed(self, model: str, version: int) -> bool:
        """Whether the removal of a version has its event."""
        return f"removal {model}/{version}" in self._last

    def unloaded_models(self) -> list[str]:
        """Models of which the last change was to unload them, sorted."""
        loads = self._last.of("load").values()
        return sorted(last.model for last in loads if last.kind is EventKind.MODEL_UNLOADED)

    def serving(self, model: str = "") -> list[Event]:
        """What serves, of all models when none is given: by version and generation, sorted."""
        return [last for _, last in sorted(self._last.of("serving", model).items())]

    def lost_replicas(self) -> list[Event]:
        """Losses that have not ended, oldest first."""
        once = self._last.of("once").values()
        lost = [each for each in once if each.kind is EventKind.REPLICA_LOST]
        return sorted(lost, key=lambda each: each.at)

    def changed_at(self, event: Event) -> str:
        """When that changed which led to an event; "" when nothing has, or it is a change."""
        what = kind_of_subject(subject_of(event))
        if what in _CHANGES or event.kind is EventKind.REPLICA_LOST:
            return ""
        if event.kind is EventKind.REPLICA_RESTORED:
            return self._at(subject_of(event))
        subjects = [f"generation {event.generation}", f"model {event.model}"]
        if what == "serving":
            subjects += [f"load {event.model}", f"weights {event.model}"]
            subjects += self._removals_of_newest(event.model)
        # What serves follows from a rebuild only if that had it proven.
        rebuild = f"rebuild {event.model}"
        proof = self._last.get(f"proof {event.key}")
        if what != "serving" or (proof and proof.mark > self._at(rebuild)):
            subjects.append(rebuild)
        return max(map(self._at, subjects))

    def _at(self, subject: str) -> str:
        last = self._last.get(subject)
        return last.at if last else ""

    def _removals_of_newest(self, model: str) -> Iterator[str]:
        """The removal of an older version changes nothing of what serves."""
        newest = self.newest(model)
        version = newest.version if newest else 0
        while self.is_removed(model, version):
            yield f"removal {model}/{version}"
            version -= 1

    def _ends(self, event: Event, subject: str, last: Event) -> bool:
        """Whether an event ends what the last one of another subject began."""
        what = kind_of_subject(subject)
        if event.kind is EventKind.GENERATION_GONE:
            return what == "serving" and last.generation == event.generation
        if last.model != event.model:
            return False
        match event.kind:
            case EventKind.MODEL_PUBLISHED | EventKind.RECIPE_CHANGED:
                is_old = last.version < event.version - 1
                is_sharing = last.version in self._sharing(last.model)
                return what in ("serving", "joint") and is_old and not is_sharing
            case EventKind.REBUILD_REQUESTED:
                return what == "quarantined" and event.generation in ("", last.generation)
            case EventKind.MODEL_REMOVED if last.version == event.version:
                return what == "serving"
            case _:
                return what == "serving" and self._is_superseded(last)

    def _is_superseded(self, last: Event) -> bool:
        """Whether a newer version took over all requests: that end has no event."""
        return last.version not in self._sharing(last.model) and any(
            other.generation == last.generation and other.version > last.version
            for other in self.serving(last.model)
        )

    def _is_gone(self, model: str) -> bool:
        newest = self.newest(model)
        versions = range(1, newest.version + 1 if newest else 1)
        return all(self.is_removed(model, version) for version in versions)

    def _sharing(self, model: str) -> list[int]:
        """The versions that share requests by weights."""
        weights = self._last.get(f"weights {model}")
        return [int(word) for word in weights.mark.split()[1:]] if weights else []

    def _forget_oldest(self) -> None:
        once = self._last.of("once")
        if len(once) > _MAX_ONCE:
            self._last.remove(min(once, key=self._at))


def _number(event: Event) -> int:
    number, *_ = map(int, event.mark.removeprefix(_RECORD_MARK).split())
    return number


class LastEvents:
    """A dictionary by subject, `KIND NAME`, with an index: a fleet has thousands of subjects."""

    def __init__(self, last: Mapping[str, Event]) -> None:
        self._last: dict[str, Event] = {}
        self._index: defaultdict[tuple[str, str], dict[str, Event]] = defaultdict(dict)
        for subject, event in last.items():
            self.put(subject, event)

    def __contains__(self, subject: str) -> bool:
        return subject in self._last

    def get(self, subject: str) -> Event | None:
        """The last event of a subject; None when there is none."""
        return self._last.get(subject)

    def put(self, subject: str, event: Event) -> None:
        """Take an event as the last one of its subject."""
        self.remove(subject)
        self._last[subject] = event
        for key in _index_keys(subject, event):
            self._index[key][subject] = event

    def remove(self, subject: str) -> None:
        """Forget a subject, if it is there."""
        if (event := self._last.pop(subject, None)) is None:
            return
        for key in _index_keys(subject, event):
            del self._index[key][subject]
            if not self._index[key]:
                del self._index[key]

    def of(self, what: str, model: str = _ANY_MODEL) -> Mapping[str, Event]:
        """Those of one kind of subject, of all models when none is given; by subject."""
        return self._index.get((what, model), {})

    def all(self) -> dict[str, Event]:
        """All of them by subject, as a copy."""
        return dict(self._last)


def kind_of_subject(subject: str) -> str:
    """The first word of a subject."""
    return subject.partition(" ")[0]


def _index_keys(subject: str, event: Event) -> Iterator[tuple[str, str]]:
    what = kind_of_subject(subject)
    yield what, _ANY_MODEL
    if event.model:
        yield what, event.model
