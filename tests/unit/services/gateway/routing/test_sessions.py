"""Which replica a session goes to, while replicas come, go and fill up."""

from collections import Counter
from collections.abc import Callable

import pytest

from services.gateway.routing.balancer import choice_of
from services.gateway.routing.sessions import choose_for_session, session_number, share_of
from services.gateway.upstream.endpoint import Endpoint

NewEndpoint = Callable[..., Endpoint]
SESSIONS = [session_number(f"user-{number}") for number in range(2000)]


@pytest.fixture
def endpoints(new_endpoint: NewEndpoint) -> list[Endpoint]:
    return [new_endpoint(f"r{number}") for number in range(5)]


def _owners(endpoints: list[Endpoint]) -> dict[int, Endpoint]:
    choice = choice_of(endpoints)
    return {session: choose_for_session(session, choice) for session in SESSIONS}


def test_the_number_is_the_same_in_every_process() -> None:
    assert session_number("a") == session_number(b"a") == 0x40F89E395B66422F


def test_sessions_spread_evenly_and_stay(endpoints: list[Endpoint]) -> None:
    owners = _owners(endpoints)
    assert all(320 < num < 480 for num in Counter(owners.values()).values())
    assert owners == _owners(list(reversed(endpoints)))


def test_only_the_sessions_of_a_lost_replica_move(endpoints: list[Endpoint]) -> None:
    before, after = _owners(endpoints), _owners(endpoints[1:])
    moved = {session for session in SESSIONS if before[session] is not after[session]}
    assert moved == {session for session in SESSIONS if before[session] is endpoints[0]}
    assert len({after[session] for session in moved}) == 4


def test_a_faster_replica_has_more_sessions(endpoints: list[Endpoint]) -> None:
    for endpoint in endpoints[1:]:
        endpoint.weight = 0.25
    assert Counter(_owners(endpoints).values())[endpoints[0]] == pytest.approx(1000, rel=0.1)


def test_what_is_too_much_for_one_goes_to_the_next_in_order(endpoints: list[Endpoint]) -> None:
    session, choice = SESSIONS[0], choice_of(endpoints)
    first = choose_for_session(session, choice)
    first.num_outstanding = 7
    assert choose_for_session(session, choice) is first
    first.num_outstanding = 8  # more than twice its share of 8
    second = choose_for_session(session, choice)
    assert second is not first
    assert second is choose_for_session(
        session, choice_of([each for each in endpoints if each is not first])
    )
    for endpoint in endpoints:
        endpoint.num_outstanding = 100
    assert choose_for_session(session, choice) is first


def test_shares_of_sessions_are_even() -> None:
    shares = sorted(map(share_of, SESSIONS))
    assert shares[0] >= 0.0
    assert shares[-1] < 1.0
    assert shares[1000] == pytest.approx(0.5, abs=0.05)
