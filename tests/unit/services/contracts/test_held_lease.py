"""A held lease: renewed while work goes on, released after it, lost when another has it."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from services.contracts.builds.build_lease import BuildLease, LeaseRevision
from services.contracts.builds.held_lease import HeldLease, take_lease
from services.contracts.errors import StoreError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import ObstoreArtifactStore, open_store

KEY = "k"
WAIT_S = 60.0


class WatchedRegistry(Registry):
    """Tells a test of every lease that is offered; fails as often as it is told to."""

    def __init__(self, store: ObstoreArtifactStore, cache_dir: Path) -> None:
        super().__init__(store, cache_dir)
        self._changed = threading.Condition()
        self.offers: list[BuildLease] = []
        self.num_faults = 0
        self.is_answer_lost = False
        self.fault: Exception = StoreError("no connection")

    def offer_lease(self, key_digest: str, number: int, lease: BuildLease) -> bool:
        is_ours = None
        if self.num_faults == 0 or self.is_answer_lost:
            is_ours = super().offer_lease(key_digest, number, lease)
        with self._changed:
            self.offers.append(lease)
            self._changed.notify_all()
            if self.num_faults:
                self.num_faults -= 1
                raise self.fault
        assert is_ours is not None
        return is_ours

    def wait_for(self, is_so: Callable[[list[BuildLease]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.offers), WAIT_S)


@pytest.fixture
def registry(tmp_path: Path) -> WatchedRegistry:
    return WatchedRegistry(open_store("memory:"), tmp_path)


def taken(registry: Registry, lease_s: float = 0.05) -> HeldLease:
    lease = take_lease(registry, KEY, registry.lease(KEY), lease_s)
    assert lease is not None
    return lease


def test_a_lease_is_renewed_and_then_released(registry: WatchedRegistry) -> None:
    with taken(registry) as lease:
        registry.wait_for(lambda offers: len(offers) > 3)
        found = registry.lease(KEY)
        assert found.lease is not None
        assert not found.is_free
        assert found.number > 1
    assert registry.lease(KEY).is_free
    assert lease.lost_to() == ""


def test_a_store_that_keeps_each_renewal_gets_few(
    registry: WatchedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object, key: str) -> None:
        raise StoreError(f"no permission to delete {key}")

    monkeypatch.setattr(ObstoreArtifactStore, "delete", refuse)
    lease = take_lease(registry, KEY, registry.lease(KEY), 0.05, kept_lease_s=3600.0)
    assert lease is not None
    with lease:
        registry.wait_for(lambda offers: offers[-1].lease_s == 3600.0)
        assert len(registry.offers) <= 3


def test_a_delete_that_fails_once_does_not_make_the_lease_a_long_one(
    registry: WatchedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, faults = ObstoreArtifactStore.delete, [StoreError("503")]

    def fail_once(store: ObstoreArtifactStore, key: str) -> None:
        if faults:
            raise faults.pop()
        delete(store, key)

    monkeypatch.setattr(ObstoreArtifactStore, "delete", fail_once)
    held = take_lease(registry, KEY, registry.lease(KEY), 0.05, 0.1)
    assert held is not None
    with held:
        registry.wait_for(lambda offers: 0.1 in [offer.lease_s for offer in offers])
        registry.wait_for(lambda offers: offers[-1].lease_s == 0.05)


def test_a_stage_is_shown_at_once_and_a_line_with_it(registry: WatchedRegistry) -> None:
    # No heartbeat comes in so long a lease.
    with taken(registry, lease_s=3600) as lease:
        lease.show_progress(stage="wait", line="for other builds")
        registry.wait_for(lambda offers: offers[-1].stage == "wait")
        assert registry.offers[-1].line == "for other builds"
        lease.show_progress(stage="build")
        registry.wait_for(lambda offers: offers[-1].stage == "build")
        assert registry.offers[-1].line == ""
        lease.show_progress(line="compiling C++")
        lease.show_progress()
    released = registry.offers[-1]
    assert (released.stage, released.line, released.is_released) == ("build", "compiling C++", True)
    assert registry.offers[-1].stage_since >= released.taken_at


def test_what_is_held_is_not_taken_and_what_is_released_is(registry: WatchedRegistry) -> None:
    before = registry.lease(KEY)
    with taken(registry, lease_s=3600):
        assert take_lease(registry, KEY, before, 1.0) is None
    with taken(registry):
        assert not registry.lease(KEY).is_free


def test_whoever_loses_its_lease_is_told_and_releases_nothing(registry: WatchedRegistry) -> None:
    others = set(threading.enumerate())
    with taken(registry, lease_s=0.2) as lease:
        heartbeats = set(threading.enumerate()) - others
        found = registry.lease(KEY)
        assert found.lease is not None
        other = found.lease.model_copy(update={"holder": "other", "host": "node-2"})
        while not Registry.offer_lease(registry, KEY, registry.lease(KEY).number + 1, other):
            pass  # a heartbeat came between
        for heartbeat in heartbeats:
            heartbeat.join(WAIT_S)
            assert not heartbeat.is_alive()
    assert "taken over by node-2" in lease.lost_to()
    assert registry.lease(KEY).lease == other


@pytest.mark.parametrize("fault", [StoreError("no connection"), ValueError("not one of ours")])
def test_a_store_that_fails_for_a_while_costs_no_lease(
    registry: WatchedRegistry, fault: Exception
) -> None:
    registry.fault = fault
    with taken(registry) as lease:
        registry.num_faults = 3
        num_before = len(registry.offers)
        registry.wait_for(lambda offers: len(offers) > num_before + 5)
        assert lease.lost_to() == ""
    assert registry.lease(KEY).is_free


def test_a_renewal_whose_answer_is_lost_is_our_own(registry: WatchedRegistry) -> None:
    with taken(registry) as lease:
        registry.is_answer_lost, registry.num_faults = True, 1
        num_before = len(registry.offers)
        registry.wait_for(lambda offers: len(offers) > num_before + 4)
        assert lease.lost_to() == ""
    assert registry.lease(KEY).is_free


def test_a_lease_whose_answer_is_lost_is_ours(registry: WatchedRegistry) -> None:
    registry.is_answer_lost, registry.num_faults = True, 1
    with taken(registry):
        assert not registry.lease(KEY).is_free
    assert registry.lease(KEY).is_free


def test_a_lease_that_cannot_be_stored_is_not_taken(registry: WatchedRegistry) -> None:
    registry.num_faults = 1
    with pytest.raises(StoreError, match="no connection"):
        take_lease(registry, KEY, LeaseRevision(), 1.0)
    assert registry.lease(KEY) == LeaseRevision()
