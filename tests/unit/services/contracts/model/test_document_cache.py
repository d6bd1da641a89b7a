"""Documents that were read lately are kept, and no others."""

from pathlib import Path

import pytest

from services.contracts.events import EventDay
from services.contracts.registry.records import DocumentCache, Records
from services.contracts.store.object_store import open_store


class Clock:
    """Shows the seconds that a test wants."""

    now_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_nothing_asked_for_in_a_while_is_dropped(clock: Clock) -> None:
    cache = DocumentCache(clock)
    for number in range(3):
        clock.now_s = number
        cache.keep(str(number), EventDay(day=str(number)), "digest")
    clock.now_s = 500.0
    assert cache.get("1") == (EventDay(day="1"), "digest")
    clock.now_s = 1000.0
    cache.keep("3", EventDay(day="3"), "digest")
    assert len(cache) == 2
    assert cache.get("0") is None
    assert cache.get("1")


def test_all_records_of_one_moment_share_their_documents(tmp_path: Path, clock: Clock) -> None:
    store = open_store(str(tmp_path))
    cache = DocumentCache(clock)
    records = Records(store, cache)
    records.create("days/a.json", EventDay(day="a"))
    records.read("days/a.json", EventDay)
    store.delete("days/a.json")
    assert Records(store, cache).read("days/a.json", EventDay).day == "a"
