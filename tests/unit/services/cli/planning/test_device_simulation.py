"""Replicas that share a device, beside formulas of queueing theory."""

from statistics import mean

import pytest

from services.cli.planning.device_simulation import Part, capacity, keeps_p99, simulated
from services.cli.planning.device_use import device_use
from services.cli.planning.replica_memory import ReplicaMemory
from tests.unit.services.cli.planning.planned_queue import planned_queue

SHORT_S = 0.001
LONG_S = 0.005
# So many that hardly any request finds its own replica computing.
MANY = 64


@pytest.mark.parametrize(("load_short", "load_long"), [(0.4, 0.2), (0.1, 0.6)])
def test_many_replicas_are_the_processor_sharing_of_the_books(
    load_short: float, load_long: float
) -> None:
    """M/G/1-PS: a request takes its own run's time by the share that is idle, however long others.

    The device runs the requests one after the other in M/G/1: short ones would wait for long ones.
    """
    parts = [
        Part(planned_queue(SHORT_S), load_short / SHORT_S, MANY),
        Part(planned_queue(LONG_S), load_long / LONG_S, MANY),
    ]
    found = [simulated(parts, seed) for seed in range(4)]
    idle = 1 - load_short - load_long
    assert mean(each[0].mean_s for each in found) == pytest.approx(SHORT_S / idle, rel=0.06)
    assert mean(each[1].mean_s for each in found) == pytest.approx(LONG_S / idle, rel=0.1)
    assert mean(each[0].busy for each in found) == pytest.approx(load_short, rel=0.1)


def test_a_lone_request_takes_its_run_whatever_else_is_on_the_device() -> None:
    parts = [Part(planned_queue(SHORT_S), 0.01), Part(planned_queue(LONG_S), 0.01)]
    short, long = simulated(parts)
    assert (short.p50_s, long.p50_s) == pytest.approx((SHORT_S, LONG_S))


def test_a_model_that_others_make_late_is_seen() -> None:
    brief = planned_queue(SHORT_S, p99_ms=2.2)
    assert keeps_p99([Part(brief, 100)])
    assert keeps_p99([Part(brief, 100), Part(planned_queue(SHORT_S), 10)])
    assert not keeps_p99([Part(brief, 100), *[Part(planned_queue(LONG_S), 120)] * 2])


def test_a_replica_answers_no_more_than_its_host_decodes() -> None:
    bound = planned_queue(1e-6, host_ms=0.25, p99_ms=50)
    assert 0.9 * 4000 < capacity(bound) <= 4000
    memory = ReplicaMemory(share=0.3, needed_gib=6.0, memory_gib=24)
    use = device_use(bound, memory)
    assert use.num_replicas == 3
    assert 0.9 * 12_000 < use.capacity <= 12_000
    # On a CPU a replica has all of it.
    assert device_use(bound, None).num_replicas == 1
    # What the engine bounds has no use for more.
    assert device_use(planned_queue(0.01, p99_ms=200), memory).num_replicas == 1
