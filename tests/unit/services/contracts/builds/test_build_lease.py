"""When a lease may be taken, by one clock, and that of all who try one succeeds."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from services.contracts.builds.build_lease import (
    MAX_SKEW_S,
    BuildLease,
    LeaseRevision,
    LeaseWatch,
    pid_space,
)
from services.contracts.errors import AlreadyPublishedError, StoreError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store
from services.contracts.text.moments import timestamp, utc_now

LEASE_S = 30.0


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def lease(age_s: float = 0.0, holder: str = "a", *, is_released: bool = False) -> BuildLease:
    at = timestamp(utc_now() - timedelta(seconds=age_s))
    return BuildLease(
        holder=holder,
        host="node-1",
        process_id=7,
        lease_s=LEASE_S,
        stage="build",
        stage_since=at,
        taken_at=at,
        renewed_at=at,
        is_released=is_released,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> LeaseWatch:
    return LeaseWatch(LEASE_S, clock)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(open_store("memory:"), tmp_path)


def test_what_nobody_holds_may_be_taken(watch: LeaseWatch) -> None:
    assert watch.is_takeable(LeaseRevision())
    assert watch.is_takeable(LeaseRevision(number=4, lease=lease(is_released=True)))


def test_the_lease_of_a_process_of_this_machine_that_ended_may_be_taken(watch: LeaseWatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        held = lease().model_copy(update={"process_id": process.pid, "pid_space": pid_space()})
        assert not watch.is_takeable(LeaseRevision(number=1, lease=held))
    assert watch.is_takeable(LeaseRevision(number=1, lease=held))
    elsewhere = held.model_copy(update={"pid_space": "another boot pid:[1]"})
    assert not watch.is_takeable(LeaseRevision(number=1, lease=elsewhere))


def test_a_lease_holds_for_as_long_as_its_number_moves(watch: LeaseWatch, clock: Clock) -> None:
    for number in range(1, 6):
        assert not watch.is_takeable(LeaseRevision(number=number, lease=lease()))
        clock.now_s += LEASE_S - 1
    assert not watch.is_takeable(LeaseRevision(number=5, lease=lease()))
    clock.now_s += 2
    assert watch.is_takeable(LeaseRevision(number=5, lease=lease()))


@pytest.mark.parametrize("skew_s", [-MAX_SKEW_S, MAX_SKEW_S - 1])
def test_a_holder_whose_clock_is_wrong_keeps_its_lease(
    watch: LeaseWatch, clock: Clock, skew_s: float
) -> None:
    for number in (1, 2, 3):
        assert not watch.is_takeable(LeaseRevision(number=number, lease=lease(age_s=skew_s)))
        clock.now_s += LEASE_S


def test_what_died_yesterday_is_not_waited_for(watch: LeaseWatch) -> None:
    old = lease(age_s=LEASE_S + MAX_SKEW_S + 1)
    assert watch.is_takeable(LeaseRevision(number=1, lease=old))


def test_a_lease_that_cannot_be_read_is_waited_for(watch: LeaseWatch, clock: Clock) -> None:
    assert not watch.is_takeable(LeaseRevision(number=1))
    clock.now_s += LEASE_S + 1
    assert watch.is_takeable(LeaseRevision(number=1))


def test_the_newest_lease_counts(registry: Registry) -> None:
    assert registry.lease("k") == LeaseRevision()
    first, second = lease(), lease(is_released=True)
    assert registry.offer_lease("k", 1, first)
    assert registry.offer_lease("k", 2, second)
    assert registry.lease("k") == LeaseRevision(number=2, lease=second)
    assert registry.lease("another") == LeaseRevision()


def test_of_all_who_offer_one_number_one_has_it(registry: Registry) -> None:
    offers = [lease(holder=str(number)) for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda offer: registry.offer_lease("k", 1, offer), offers))
    (winner,) = [offer for offer, has_won in zip(offers, won, strict=True) if has_won]
    assert registry.lease("k").lease == winner


def test_a_lease_of_a_newer_smelt_is_none_that_can_be_read(tmp_path: Path) -> None:
    store = open_store("memory:")
    store.create("leases/k/000003.json", b'{"new_field": 1}')
    assert Registry(store, tmp_path).lease("k") == LeaseRevision(number=3)


def numbers(store: ObstoreArtifactStore) -> list[str]:
    return [key.rpartition("/")[2] for key in store.list("leases/k/")]


def test_only_the_newest_lease_is_kept(tmp_path: Path) -> None:
    store = open_store("memory:")
    registry = Registry(store, tmp_path)
    for number in range(1, 5):
        assert registry.offer_lease("k", number, lease(holder=str(number)))
    assert registry.offer_lease("another", 1, lease())
    assert numbers(store) == ["000004.json"]
    # Also of workers that died before that was done.
    store.create("leases/k/000002.json", lease().canonical_json())
    assert registry.offer_lease("k", 5, lease(holder="5"))
    assert numbers(store) == ["000005.json"]


def test_a_number_that_was_removed_gives_its_former_holder_nothing(tmp_path: Path) -> None:
    """It was suspended at 1, while others took 2 and 3."""
    store = open_store("memory:")
    registry = Registry(store, tmp_path)
    for number in (1, 2, 3):
        registry.offer_lease("k", number, lease(holder=str(number)))
    assert not registry.offer_lease("k", 2, lease(holder="1"))
    found = registry.lease("k")
    assert (found.number, found.lease and found.lease.holder) == (3, "3")
    assert registry.offer_lease("k", 4, lease(holder="3"))
    assert numbers(store) == ["000004.json"]


class KeepingStore(ObstoreArtifactStore):
    """One without the permission to delete."""

    def delete(self, key: str) -> None:
        """Refuse it."""
        raise StoreError(f"'{key}': access denied")


def test_a_store_that_lets_nobody_delete_keeps_all_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = KeepingStore(MemoryStore(), "store memory:")
    registry = Registry(store, tmp_path)
    with caplog.at_level("WARNING"):
        for number in range(1, 5):
            assert registry.offer_lease("k", number, lease(holder=str(number)))
    assert len(numbers(store)) == 4
    (told,) = caplog.messages
    assert "former leases cannot be deleted" in told
    assert "access denied" in told


class MovingStore(ObstoreArtifactStore):
    """Its holder renews between a listing and the reading of what was listed."""

    num_moves = 0

    def read(self, key: str) -> bytes:
        """Renew as often as was asked for, then read."""
        if self.num_moves:
            self.num_moves -= 1
            newest = int(self.list("leases/k/")[-1][-11:-5])
            assert Registry(self, Path()).offer_lease("k", newest + 1, lease(holder="moved"))
        return super().read(key)


def test_a_lease_that_moves_on_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    store = MovingStore(MemoryStore(), "store memory:")
    registry = Registry(store, tmp_path)
    registry.offer_lease("k", 1, lease())
    store.num_moves = 2
    found = registry.lease("k")
    assert (found.number, found.lease and found.lease.holder) == (3, "moved")
    store.num_moves = 100
    with pytest.raises(StoreError, match="changes faster"):
        registry.lease("k")


class OvertakenStore(ObstoreArtifactStore):
    """Between a create that is too late and the look at what is there, its holder goes on."""

    holder: Registry

    def create(self, key: str, data: bytes) -> None:
        try:
            super().create(key, data)
        except AlreadyPublishedError:
            assert self.holder.offer_lease("k", 2, lease(holder="b", age_s=-1.0))
            raise


def test_a_lease_whose_holder_goes_on_meanwhile_is_the_holders(tmp_path: Path) -> None:
    backend = MemoryStore()
    late = OvertakenStore(backend, "late")
    late.holder = Registry(ObstoreArtifactStore(backend, "held"), tmp_path)
    registry = Registry(late, tmp_path)
    assert late.holder.offer_lease("k", 1, lease(holder="b"))
    assert not registry.offer_lease("k", 1, lease(holder="a"))
    assert registry.lease("k").number == 2
