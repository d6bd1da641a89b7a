"""The controller of a fleet on one host is killed: the data plane goes on. What Ray runs there."""

import asyncio
import re

import grpc
import psutil
import pytest

from services.pb import fleet_v1_pb2 as pb
from tests.integration.fleet.load import OK, Load
from tests.integration.fleet.local_fleet import WAIT_S, LocalFleet, ready_in


def controller_answers(fleet: LocalFleet) -> None:
    """Return as soon as somebody listens where the controller did."""
    with grpc.insecure_channel(fleet.running["controller"]) as channel:
        grpc.channel_ready_future(channel).result(WAIT_S)


def times_started_again(fleet: LocalFleet) -> int:
    """How often the fleet, which other tests share, had to start its controller again."""
    status = fleet.smelt_process("status").stdout
    found = re.search(r"controller was started again (\d+) times?", status)
    return int(found[1]) if found else 0


async def test_a_killed_controller_takes_no_replica_along(fleet: LocalFleet) -> None:
    before = {replica["process_id"] for replica in fleet.replicas("linear")}
    ray, controller = (fleet.child(f"services.controller{part}").pid for part in (".ray_node", ""))
    num_starts = times_started_again(fleet)
    load = Load(fleet.address, "linear", lambda x_BF, y_BF: y_BF.shape == (1, 4), 8)
    async with load.running(4):
        await load.wait_for(OK, 20)
        fleet.child("services.controller").kill()
        await load.wait_for(OK, 50)
        await asyncio.to_thread(controller_answers, fleet)
        await asyncio.to_thread(fleet.wait_ready, "linear", 2)
        await load.wait_for(OK, 50)
    assert set(load.outcomes) == {OK}, load.failures
    assert load.num_wrong == 0
    assert {replica["process_id"] for replica in fleet.replicas("linear")} == before
    assert fleet.child("services.controller").pid != controller
    assert fleet.child("services.controller.ray_node").pid == ray
    assert times_started_again(fleet) == num_starts + 1
    assert "ended by signal 9 (Killed)" in fleet.smelt_process("status").stdout


def test_ray_has_no_dashboard(fleet: LocalFleet) -> None:
    processes = fleet.child("services.controller.ray_node").children()
    commands = [" ".join(process.cmdline()) for process in processes]
    assert [each for each in commands if "/gcs/gcs_server" in each]
    assert not [each for each in commands if "dashboard.py" in each]


def fork_server(fleet: LocalFleet) -> psutil.Process:
    """What forks the workers of the fleet's Ray."""
    module = "services.replica.ray_worker.fork_server"
    children = fleet.child("services.controller.ray_node").children()
    (found,) = (each for each in children if module in each.cmdline())
    return found


def parents(fleet: LocalFleet, model: str) -> set[int]:
    """Processes that the replicas of a model were started by."""
    return {psutil.Process(each["process_id"]).ppid() for each in fleet.replicas(model)}


def test_replicas_are_forked(fleet: LocalFleet) -> None:
    assert parents(fleet, "linear") == {fork_server(fleet).pid}


# Slow as it leaves the fleet, which other tests share, without its fork server.
@pytest.mark.slow
def test_replicas_start_without_what_forks_them(fleet: LocalFleet) -> None:
    killed, stays = (replica["process_id"] for replica in fleet.replicas("linear"))
    fork_server(fleet).kill()
    psutil.Process(killed).kill()

    def others(seen: pb.FleetSnapshot) -> set[int]:
        return {each.process_id for each in ready_in(seen, "linear")} - {killed, stays}

    (new,) = others(fleet.wait_until(lambda seen: len(others(seen)) == 1))
    raylet = psutil.Process(new).parent()
    assert raylet is not None
    assert raylet.name() == "raylet"
