"""A change counts once it has lasted; what flaps does not."""

from services.controller.platform.kubernetes.settling import Settling


def _settled(settling: Settling[str], now_s: float) -> dict[str, str]:
    settling.settle(now_s)
    return settling.settled


def test_what_is_seen_first_is_believed_at_once() -> None:
    settling = Settling[str](10)
    settling.observe({"a": "x"}, 100)
    assert settling.settled == {"a": "x"}
    assert settling.due_in_s(100) is None


def test_nothing_is_known_before_anything_was_seen() -> None:
    assert _settled(Settling[str](10), 100) == {}


def test_a_change_counts_when_it_has_lasted() -> None:
    settling = Settling[str](10)
    settling.observe({"a": "x"}, 0)
    settling.observe({"a": "y", "b": "z"}, 100)
    assert settling.due_in_s(104) == 6
    assert _settled(settling, 109.9) == {"a": "x"}
    assert _settled(settling, 110) == {"a": "y", "b": "z"}
    assert settling.due_in_s(110) is None


def test_seeing_the_same_again_does_not_start_the_wait_anew() -> None:
    settling = Settling[str](10)
    settling.observe({}, 0)
    settling.observe({"a": "x"}, 100)
    settling.observe({"a": "x"}, 109)
    assert _settled(settling, 110) == {"a": "x"}


def test_a_node_that_comes_back_in_time_was_never_away() -> None:
    settling = Settling[str](10)
    settling.observe({"a": "ready"}, 0)
    settling.observe({"a": "not ready"}, 100)
    settling.observe({"a": "ready"}, 105)
    assert settling.due_in_s(105) is None
    assert _settled(settling, 200) == {"a": "ready"}


def test_a_node_that_goes_is_gone_when_it_has_stayed_away() -> None:
    settling = Settling[str](10)
    settling.observe({"a": "x", "b": "y"}, 0)
    settling.observe({"b": "y"}, 100)
    assert _settled(settling, 109) == {"a": "x", "b": "y"}
    assert _settled(settling, 110) == {"b": "y"}


def test_one_that_came_and_went_leaves_nothing() -> None:
    settling = Settling[str](10)
    settling.observe({}, 0)
    settling.observe({"a": "x"}, 100)
    settling.observe({}, 101)
    assert settling.due_in_s(101) is None
    assert _settled(settling, 200) == {}


def test_a_second_change_waits_its_own_time() -> None:
    settling = Settling[str](10)
    settling.observe({"a": "x"}, 0)
    settling.observe({"a": "y"}, 100)
    settling.observe({"a": "z"}, 108)
    assert _settled(settling, 110) == {"a": "x"}
    assert _settled(settling, 118) == {"a": "z"}


def test_what_is_due_first_is_said_first() -> None:
    settling = Settling[str](10)
    settling.observe({}, 0)
    settling.observe({"a": "x"}, 100)
    settling.observe({"a": "x", "b": "y"}, 104)
    assert settling.due_in_s(105) == 5
    assert _settled(settling, 110) == {"a": "x"}
    assert settling.due_in_s(111) == 3
