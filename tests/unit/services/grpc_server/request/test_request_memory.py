"""Which large request may be sent now, which one waits, and what is counted beside them."""

import pytest

from services.grpc_server.request.request_memory import RequestMemory, Reservation


class Requests:
    """Requests in memory for 100 bytes.

    Attributes:
        memory: whose.
        now_s: of its clock.
        granted: names of those that were granted later, in that order.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.memory = RequestMemory(100, 10, lambda: self.now_s)
        self.granted: list[str] = []
        self._reservations: dict[str, Reservation] = {}

    def reserve(self, name: str, size: int) -> Reservation:
        """One more request."""
        reservation = self.memory.reserve(size, lambda: self.granted.append(name))
        self._reservations[name] = reservation
        return reservation

    def release(self, name: str) -> None:
        """It is answered, or given up."""
        self.memory.release(self._reservations[name])


def test_first_come_first_served() -> None:
    requests = Requests()
    granted = [requests.reserve(name, 40).is_granted for name in "abcd"]
    assert granted == [True, True, False, False]
    # A small one does not pass those that wait: they would wait for ever.
    assert not requests.reserve("small", 1).is_granted
    requests.release("a")
    assert requests.granted == ["c"]
    requests.release("d")  # its client has gone
    assert requests.granted == ["c", "small"]
    for name in ("a", "d", "b", "c", "small"):
        requests.release(name)
    assert requests.reserve("e", 100).is_granted


def test_one_that_is_larger_than_all_memory_comes_alone() -> None:
    requests = Requests()
    assert requests.reserve("huge", 1000).is_granted
    assert not requests.reserve("other", 1).is_granted
    requests.release("huge")
    assert requests.granted == ["other"]
    assert not requests.reserve("huge again", 1000).is_granted
    requests.release("other")
    assert requests.granted == ["other", "huge again"]


def test_what_turns_out_smaller_leaves_the_rest_to_others() -> None:
    requests = Requests()
    first, second = requests.reserve("first", 90), requests.reserve("second", 60)
    requests.memory.shrink(first, 100)
    assert not second.is_granted
    requests.memory.shrink(first, 40)
    assert (requests.granted, first.num_bytes) == (["second"], 40)
    third = requests.reserve("third", 1)
    requests.memory.shrink(third, 0)  # it waits, and has none to return
    requests.memory.release(first)
    requests.memory.shrink(first, 0)
    assert requests.granted == ["second", "third"]
    assert requests.reserve("fourth", 39).is_granted
    assert not requests.reserve("fifth", 1).is_granted


def test_requests_that_waited_a_while_ago_count_as_waiting() -> None:
    """Or clients with short deadlines, one after another, would never be seen to wait."""
    requests = Requests()
    requests.reserve("a", 100)
    assert not requests.memory.has_waiters(5)
    requests.reserve("b", 1)
    assert requests.memory.has_waiters(5)
    requests.release("b")
    requests.now_s = 4
    assert requests.memory.has_waiters(5)
    requests.now_s = 5
    assert not requests.memory.has_waiters(5)
    requests.reserve("c", 1)
    requests.release("a")
    requests.now_s = 9
    assert requests.memory.has_waiters(5)


@pytest.mark.parametrize(
    ("num_bytes", "is_scarce", "is_full"), [(5, False, False), (6, True, False), (11, True, True)]
)
def test_what_is_counted_has_a_bound(num_bytes: int, *, is_scarce: bool, is_full: bool) -> None:
    requests = Requests()
    # Reservations are not counted, and do not wait for what is.
    requests.memory.count(num_bytes)
    assert requests.reserve("large", 100).is_granted
    assert (requests.memory.is_scarce, requests.memory.is_full) == (is_scarce, is_full)
    requests.memory.count(-num_bytes)
    assert not requests.memory.is_scarce
