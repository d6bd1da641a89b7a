"""Processes of a real fleet are killed under load; every call must end, and rightly.

A call may succeed or be told UNAVAILABLE. None may hang, end in another way, or get a wrong
answer, and the fleet must be whole again by itself. The figures that each test prints are
kept in tests/benchmarks/results/faults_cpu_202611.md; show them with `pytest -s`.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from urllib.request import urlopen

import numpy as np
import pytest

from services.contracts.kserve.tensors import Array
from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.load import DEADLINE_S, OK, UNAVAILABLE, Load
from tests.integration.fleet.local_fleet import LocalFleet, fleet_home, ready_in, still_running
from tests.integration.fleet.onnx_files import write_recipe, write_scaled
from tests.integration.fleet.test_supervision import controller_answers

pytestmark = pytest.mark.slow

NUM_CALLERS = 32
WIDTH = 64
FACTOR = 3.0
# Less than the calls' deadline, so that what waits in vain is told so.
HOLD_S = DEADLINE_S - 10


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A fleet with model `pair` on two replicas and model `solo` on one."""
    folder = tmp_path_factory.mktemp("models")
    with fleet_home(SMELT_GATEWAY_HOLD_S=str(HOLD_S)) as fleet:
        for name, num_replicas in (("pair", 2), ("solo", 1)):
            source = write_scaled(folder / f"{name}.onnx", FACTOR)
            recipe = write_recipe(folder / f"{name}.yaml", num_replicas, features=WIDTH)
            fleet.add(name, source, recipe)
        fleet.up()
        yield fleet


@pytest.fixture(autouse=True)
def _whole(fleet: LocalFleet) -> None:
    """Each test begins with all replicas ready."""
    fleet.wait_ready("pair", 2)
    fleet.wait_ready("solo", 1)


def is_correct(x_BF: Array, y_BF: Array) -> bool:
    return bool(np.array_equal(y_BF, x_BF * np.float32(FACTOR)))


def load_on(fleet: LocalFleet, model: str) -> Load:
    return Load(fleet.address, model, is_correct, WIDTH)


async def is_back(fleet: LocalFleet, model: str, num: int, lost: set[int]) -> float:
    """Wait for so many ready replicas, none of them a lost process; time.monotonic() then."""

    def has_recovered(seen: pb.FleetSnapshot) -> bool:
        pids = {replica.process_id for replica in ready_in(seen, model)}
        return len(pids) == num and not pids & lost

    await asyncio.to_thread(fleet.wait_until, has_recovered)
    return time.monotonic()


def check_and_print(what: str, load: Load, back_s: float) -> None:
    """What holds for every fault; and the figures, as a row of the results' table."""
    assert set(load.outcomes) <= {OK, UNAVAILABLE}, load.failures
    assert load.num_wrong == 0
    assert load.longest_s < DEADLINE_S
    ok, unavailable = load.outcomes[OK], load.outcomes[UNAVAILABLE]
    print(
        f"\n| {what} | {ok + unavailable} | {ok} | {unavailable} | 0 | "
        f"{load.longest_s:.2f} | {back_s:.1f} |"
    )


def retries(fleet: LocalFleet) -> float:
    """Requests that the gateway sent to a second replica so far."""
    with urlopen(f"http://{fleet.running['metrics_address']}/metrics", timeout=30) as page:
        lines: list[str] = page.read().decode().splitlines()
    values = [line for line in lines if line.startswith("smelt_request_retries_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in values)


async def test_one_of_two_replicas(fleet: LocalFleet) -> None:
    """The other one answers, also what was in flight to the dead one."""
    victim = fleet.replicas("pair")[0]["process_id"]
    before = retries(fleet)
    load = load_on(fleet, "pair")
    async with load.running(NUM_CALLERS):
        await load.wait_for(OK, 500)
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        back_s = await is_back(fleet, "pair", 2, {victim}) - killed_s
        await load.wait_for(OK, 500)
    check_and_print("1 of 2 replicas killed", load, back_s)
    print(f"requests sent again to the other replica: {retries(fleet) - before:.0f}")
    assert len(fleet.replicas("pair")) == 2


def is_solo_lost(seen: pb.FleetSnapshot) -> bool:
    """What `smelt status` shows: an application that runs, and none of its replicas."""
    solo = next(model for model in seen.models if model.name == "solo")
    return solo.state == "LOADING" and solo.reason.startswith("1 replica lost")


async def test_the_only_replica(fleet: LocalFleet) -> None:
    """Nobody else can answer: the gateway holds all calls until the replica is back."""
    (replica,) = fleet.replicas("solo")
    victim = replica["process_id"]
    load = load_on(fleet, "solo")
    async with load.running(NUM_CALLERS):
        await load.wait_for(OK, 500)
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        await asyncio.to_thread(fleet.wait_until, is_solo_lost)
        back_s = await is_back(fleet, "solo", 1, {victim}) - killed_s
        await load.wait_for(OK, 500)
    check_and_print("the only replica killed", load, back_s)
    # Ray may need longer on a machine with much other work.
    assert set(load.outcomes) == {OK} or back_s > HOLD_S


async def test_the_gateway(fleet: LocalFleet) -> None:
    """The supervisor starts it again on the same port; clients reconnect by themselves."""
    gateway = fleet.child("services.gateway")
    load = load_on(fleet, "pair")
    async with load.running(NUM_CALLERS):
        await load.wait_for(OK, 500)
        gateway.kill()
        killed_s = time.monotonic()
        await load.wait_for(UNAVAILABLE, NUM_CALLERS)
        await load.wait_for(OK, 1)
        back_s = time.monotonic() - killed_s
        await load.wait_for(OK, 500)
    check_and_print("the gateway killed", load, back_s)
    assert fleet.child("services.gateway").pid != gateway.pid


async def test_the_controller_stands_still(fleet: LocalFleet) -> None:
    """No request needs it: the gateway goes on with the replicas it knows."""
    controller = fleet.child("services.controller")
    load = load_on(fleet, "pair")
    controller.suspend()
    try:
        async with load.running(NUM_CALLERS):
            await load.wait_for(OK, 1000)
    finally:
        controller.resume()
    check_and_print("the controller suspended", load, 0.0)
    assert set(load.outcomes) == {OK}


async def test_the_controller(fleet: LocalFleet) -> None:
    """Ray is a process of its own, so the replicas stay, and take up with the next controller."""
    controller = fleet.child("services.controller")
    before = {r["process_id"] for model in ("pair", "solo") for r in fleet.replicas(model)}
    load = load_on(fleet, "pair")
    async with load.running(NUM_CALLERS):
        await load.wait_for(OK, 500)
        controller.kill()
        killed_s = time.monotonic()
        await load.wait_for(OK, 500)
        await asyncio.to_thread(controller_answers, fleet)
        back_s = await is_back(fleet, "pair", 2, set()) - killed_s
        await load.wait_for(OK, 500)
    check_and_print("the controller killed", load, back_s)
    assert set(load.outcomes) == {OK}
    assert fleet.child("services.controller").pid != controller.pid
    fleet.wait_ready("solo", 1)
    after = {r["process_id"] for model in ("pair", "solo") for r in fleet.replicas(model)}
    assert after == before


async def test_the_raylet(fleet: LocalFleet) -> None:
    """All of its Ray ends with it; Ray is started again, and the controller joins the new one."""
    ray = fleet.child("services.controller.ray_node")
    lost = {r["process_id"] for model in ("pair", "solo") for r in fleet.replicas(model)}
    all_of_it = ray.children(recursive=True)
    replicas = [process for process in all_of_it if process.pid in lost]
    assert len(replicas) == len(lost)
    (raylet,) = (process for process in ray.children() if process.name() == "raylet")
    load = load_on(fleet, "pair")
    async with load.running(NUM_CALLERS):
        await load.wait_for(OK, 500)
        raylet.kill()
        killed_s = time.monotonic()
        assert await asyncio.to_thread(still_running, replicas) == []
        # Only replicas of the new Ray can answer.
        await load.wait_for(OK, 500)
        await asyncio.to_thread(controller_answers, fleet)
        back_s = await is_back(fleet, "pair", 2, lost) - killed_s
        await load.wait_for(OK, 500)
    check_and_print("the raylet killed", load, back_s)
    assert still_running(all_of_it) == []
    assert fleet.child("services.controller.ray_node").pid != ray.pid
    status = fleet.smelt_process("status").stdout
    assert "ray was started again 1 time" in status
    assert f"raylet (process {raylet.pid}) of this host's Ray ended" in status
