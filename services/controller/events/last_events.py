"""The last event of each subject, found by subject, by kind of subject, and by model."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from services.contracts.events import Event

_ANY_MODEL = ""


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
