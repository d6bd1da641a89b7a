"""Nodes of a new generation come and go under load, and no request fails.

The figures that each test prints are kept in
tests/benchmarks/results/hardware_change_cpu_202611.md; show them with `pytest -s`.
"""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from services.contracts.events import EventKind
from tests.integration.fleet.load import OK

from .changing_fleet import ChangingFleet, PacedLoad, changing_fleet, on, other_generations

NUM_REPLICAS = 2
NUM_CALLERS = 8
NUM_EAGER_CALLERS = 32
NUM_REQUESTS = 5_000

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet() -> Iterator[ChangingFleet]:
    """A fleet of one node that serves on a proven engine."""
    with changing_fleet(NUM_REPLICAS) as fleet:
        fleet.wait_until(on(fleet.host_generation, num_ready=NUM_REPLICAS, is_proven=True))
        yield fleet


def check(load: PacedLoad) -> None:
    """Every request was answered, and rightly."""
    assert set(load.outcomes) == {OK}, (load.outcomes, load.failures)
    assert load.num_wrong == 0


def restart_controller(fleet: ChangingFleet) -> None:
    """It is killed and started again."""
    fleet.kill_controller()
    fleet.start_controller()


def test_a_new_generation_serves_at_once_and_is_swapped_to_its_own_engine(
    fleet: ChangingFleet,
) -> None:
    generation = other_generations(fleet.host_generation)[0]
    with fleet.callers(NUM_CALLERS) as callers:
        callers.wait_for(OK, 100)
        began_s = time.monotonic()
        node = fleet.add_node(generation)
        first = fleet.wait_until(on(generation, num_ready=NUM_REPLICAS))
        fallback_s = time.monotonic() - began_s
        fleet.wait_until(on(generation, num_ready=NUM_REPLICAS, is_proven=True))
        engine_s = time.monotonic() - began_s
        callers.wait_for(OK, max(NUM_REQUESTS - callers.load.outcomes[OK], 100))
        # Its replicas die with requests in flight; the other node answers these.
        with fleet.callers(NUM_EAGER_CALLERS, pause_s=0) as eager:
            eager.wait_for(OK, 500)
            fleet.remove_node(node)
            eager.wait_for(OK, 500)
        fleet.wait_until(on(generation, num_ready=0))
        fleet.wait_event(EventKind.GENERATION_GONE, generation)
    load = callers.load
    check(load)
    check(eager.load)
    told = [event.kind for event in fleet.events(generation)]
    # A host that is slow at starting replicas may have built the engine before they serve.
    if not any(replica.engine_digest for replica in first):
        assert told.index(EventKind.FALLBACK_SERVING) < told.index(EventKind.ENGINE_SERVING)
    num_calls = load.outcomes[OK] + eager.load.outcomes[OK]
    print(
        f"\n| node added, killed | {num_calls} | 0 | {fleet.num_retried()} | {fallback_s:.1f} | "
        f"{engine_s:.1f} | {max(load.longest_s, eager.load.longest_s):.2f} |"
    )


def test_a_controller_that_is_killed_in_each_step_finishes_after_it_is_started_again(
    fleet: ChangingFleet,
) -> None:
    generation = other_generations(fleet.host_generation)[1]
    with fleet.callers(NUM_CALLERS) as callers:
        began_s = time.monotonic()
        node = fleet.add_node(generation)
        fleet.wait_event(EventKind.GENERATION_APPEARED, generation)
        restart_controller(fleet)
        fleet.wait_event(EventKind.BUILD_STARTED, generation)
        restart_controller(fleet)
        fleet.wait_attached(generation)
        restart_controller(fleet)
        fleet.wait_proof(generation)
        restart_controller(fleet)
        fleet.wait_until(on(generation, num_ready=NUM_REPLICAS, is_proven=True))
        engine_s = time.monotonic() - began_s
        callers.wait_for(OK, 500)
        fleet.remove_node(node)
        # It waits before it withdraws, and forgets since when.
        restart_controller(fleet)
        fleet.wait_event(EventKind.GENERATION_GONE, generation)
        fleet.wait_until(on(generation, num_ready=0))
    check(callers.load)
    # Engines of an older generation may serve here meanwhile, so an engine is told of by its key.
    told = Counter((event.kind, event.key, event.mark) for event in fleet.events(generation))
    assert not {what: number for what, number in told.items() if number > 1}
    kinds = {kind for kind, _, _ in told}
    assert {EventKind.PROOF_PASSED, EventKind.ENGINE_SERVING} <= kinds
    load = callers.load
    print(
        f"\n| controller killed 5 times, node killed | {load.outcomes[OK]} | 0 | - | - | "
        f"{engine_s:.1f} | {load.longest_s:.2f} |"
    )
