"""What could not be had for a while: how long it is let be."""

from services.replica.passing_failures import PassingFailures

from .batching import Clock


def test_each_failure_in_a_row_waits_twice_as_long_up_to_an_hour() -> None:
    clock = Clock()
    failures = PassingFailures(clock)
    waits_s = []
    for _ in range(9):
        assert failures.add("e", "corrupt").startswith("corrupt (tried again after ")
        began_s = clock.now_s
        while failures.waiting():
            clock.now_s += 30.0
        waits_s.append(clock.now_s - began_s)
    assert waits_s[:3] == [60.0, 120.0, 240.0]
    assert waits_s[-1] == 3600.0
    assert failures.waiting() == {}


def test_what_could_be_had_begins_anew() -> None:
    clock = Clock()
    failures = PassingFailures(clock)
    for _ in range(5):
        failures.add("e", "no space left")
    failures.forget("e")
    assert failures.waiting() == {}
    assert "after 60 s" in failures.add("e", "no space left")
    assert list(failures.waiting()) == ["e"]
