"""Waits grow to their bound and stay there, however many attempts fail."""

from services.contracts.process.backoff import Backoff, wait_after


def test_any_number_of_failures_waits_at_most_the_bound() -> None:
    assert wait_after(1, first_s=2.0, most_s=100.0) == 2.0
    assert wait_after(5, first_s=2.0, most_s=100.0) == 32.0
    assert wait_after(10**6, first_s=2.0, most_s=100.0) == 100.0
    assert wait_after(10**6, first_s=2.0, most_s=1e18) == 1e18


def test_pauses_grow_to_their_limit_and_begin_again() -> None:
    backoff = Backoff(1.0, 8.0)
    pauses = [backoff.next_pause_s() for _ in range(2000)]
    for pause_s, most_s in zip(pauses, [1.0, 2.0, 4.0] + [8.0] * 1997, strict=True):
        assert most_s / 2 <= pause_s <= most_s
    backoff.reset()
    assert backoff.next_pause_s() <= 1.0
