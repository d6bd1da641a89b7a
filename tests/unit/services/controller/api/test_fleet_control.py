"""FleetControl over a real channel: attach, watch, announce, detach, stop."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from services.cli.fleet.control_client import get_fleet
from services.contracts.errors import NotReadyError
from services.contracts.registry.registry import Registry
from services.contracts.store.object_store import open_store
from services.controller.api.fleet_control import FleetControl
from services.controller.api.fleet_state import FleetState
from services.controller.api.model_loading import Serving
from services.pb import fleet_v1_pb2 as fleet
from services.pb import fleet_v1_pb2_grpc as fleet_grpc

# Long enough for any machine; it only ends a test that fails.
LIMIT_S = 60.0


class _CountingReconciler:
    def __init__(self) -> None:
        self.num_calls = 0
        self.uses: dict[str, float] = {}

    def note_use(self, model: str, seconds_ago: float = 0.0) -> None:
        self.uses[model] = seconds_ago

    async def reconcile_now(self) -> None:
        self.num_calls += 1


@dataclass
class _Control:
    address: str
    stub: fleet_grpc.FleetControlStub
    state: FleetState
    reconciler: _CountingReconciler = field(default_factory=_CountingReconciler)


@pytest.fixture
async def control(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[_Control]:
    """With arguments of the service as parameter."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    async with grpc.aio.insecure_channel(address) as channel:
        part = _Control(address, fleet_grpc.FleetControlStub(channel), FleetState("store", 7))
        registry = Registry(open_store(str(tmp_path / "store")), tmp_path / "cache")
        serving = Serving(registry, part.state, part.reconciler, is_placing=True)
        arguments = {"reattach_grace_s": 0.0} | getattr(request, "param", {})
        service = FleetControl(part.state, part.reconciler, serving, **arguments)
        fleet_grpc.add_FleetControlServicer_to_server(service, server)
        await server.start()
        yield part
        await server.stop(None)


@pytest.fixture
async def known(control: _Control) -> _Control:
    """After the first look at the store."""
    control.state.note_look()
    return control


async def _next_where(watch: AsyncIterator[fleet.FleetSnapshot], num_replicas: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for snapshot in watch:
            if len(snapshot.replicas) == num_replicas:
                return


async def test_uses_of_models_are_taken(control: _Control) -> None:
    uses = [fleet.ModelUse(model_name="a", seconds_ago=0.5), fleet.ModelUse(model_name="b")]
    await control.stub.ReportUse(fleet.UseReport(gateway_id="g", models=uses))
    assert control.reconciler.uses == {"a": 0.5, "b": 0.0}


async def test_a_replica_is_listed_while_its_stream_is_open(known: _Control) -> None:
    watch = known.stub.WatchEndpoints(fleet.WatchEndpointsRequest())
    stream = known.stub.Attach()
    await stream.write(fleet.ReplicaReport(replica_id="r", model_name="m", model_version=1))
    await _next_where(watch, 1)
    known.state.set_engines("m", 1, "digest", ["engines/digest/a"])
    command = await stream.read()
    assert command.engines_changed.master_digest == "digest"
    assert command.engines_changed.document_keys == ["engines/digest/a"]
    stream.cancel()
    await _next_where(watch, 0)


async def _waits_for_the_look(control: _Control, asked: Awaitable[fleet.FleetSnapshot]) -> None:
    """It would take an empty fleet for one without models."""
    first = asyncio.ensure_future(asked)
    await asyncio.wait((first,), timeout=0.2)
    assert not first.done()
    control.state.set_model(fleet.ServedModel(name="m", version=1))
    control.state.note_look()
    async with asyncio.timeout(LIMIT_S):
        assert [model.name for model in (await first).models] == ["m"]


async def test_a_gateway_gets_nothing_before_the_first_look(control: _Control) -> None:
    watch = control.stub.WatchEndpoints(fleet.WatchEndpointsRequest())
    await _waits_for_the_look(control, watch.read())


@pytest.mark.parametrize("control", [{"look_timeout_s": LIMIT_S}], indirect=True)
async def test_a_command_waits_for_the_first_look(control: _Control) -> None:
    await _waits_for_the_look(control, control.stub.GetFleet(fleet.GetFleetRequest()))


@pytest.mark.parametrize("control", [{"look_timeout_s": 0.0}], indirect=True)
async def test_a_command_learns_that_the_controller_still_reads(control: _Control) -> None:
    with pytest.raises(
        NotReadyError,
        match="has not completed a first sync .*: it has just started; retry in a few seconds$",
    ):
        await asyncio.to_thread(get_fleet, control.address)
    # Not yet known to be unreadable.
    control.state.attach(fleet.ReplicaReport(replica_id="r"))
    with pytest.raises(NotReadyError, match="retry in a few seconds$"):
        await asyncio.to_thread(get_fleet, control.address)


async def test_a_command_sees_the_replicas_that_attached_after_a_look_failed(
    control: _Control,
) -> None:
    control.state.note_look("store is away")
    control.state.attach(fleet.ReplicaReport(replica_id="r"))
    snapshot = await control.stub.GetFleet(fleet.GetFleetRequest())
    assert ([r.replica_id for r in snapshot.replicas], snapshot.fault) == (["r"], "store is away")


async def test_a_gateway_is_told_why_there_is_nothing_to_hear(control: _Control) -> None:
    control.state.note_look("store is away")
    with pytest.raises(grpc.aio.AioRpcError, match="store is away") as caught:
        await control.stub.WatchEndpoints(fleet.WatchEndpointsRequest()).read()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.aio.AioRpcError, match="store is away"):
        await control.stub.GetFleet(fleet.GetFleetRequest())


@pytest.mark.parametrize(
    ("control", "unseen"),
    [({"reattach_grace_s": 3600.0}, ["r"]), ({}, [])],
    indirect=["control"],
)
async def test_a_ready_replica_whose_line_broke_is_unseen_for_the_grace(
    known: _Control, unseen: list[str]
) -> None:
    watch = aiter(known.stub.WatchEndpoints(fleet.WatchEndpointsRequest()))
    stream = known.stub.Attach()
    await stream.write(fleet.ReplicaReport(replica_id="r", state=fleet.REPLICA_STATE_READY))
    await _next_where(watch, 1)
    stream.cancel()
    async with asyncio.timeout(LIMIT_S):
        async for snapshot in watch:
            if not snapshot.replicas and [r.replica_id for r in snapshot.unseen] == unseen:
                break


async def test_a_finished_stream_withdraws_the_replica(known: _Control) -> None:
    stream = known.stub.Attach()
    await stream.write(fleet.ReplicaReport(replica_id="r", model_name="m", model_version=1))
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    assert not (await known.stub.GetFleet(fleet.GetFleetRequest())).replicas


def _python_tasks() -> set[asyncio.Task[object]]:
    """All but those of gRPC's compiled part, of which a server has some that last."""
    return {task for task in asyncio.all_tasks() if inspect.iscoroutine(task.get_coro())}


async def test_a_line_that_ends_leaves_no_task_behind(known: _Control) -> None:
    before = _python_tasks()
    watch = known.stub.WatchEndpoints(fleet.WatchEndpointsRequest())
    stream = known.stub.Attach()
    await stream.write(fleet.ReplicaReport(replica_id="r", model_name="m", model_version=1))
    await _next_where(watch, 1)
    begun = _python_tasks() - before
    stream.cancel()
    await _next_where(watch, 0)
    watch.cancel()
    _, left = await asyncio.wait(begun, timeout=LIMIT_S)
    assert not left


async def test_later_reports_replace_the_first(known: _Control) -> None:
    watch = known.stub.WatchEndpoints(fleet.WatchEndpointsRequest())
    stream = known.stub.Attach()
    for state in (fleet.REPLICA_STATE_LOADING, fleet.REPLICA_STATE_READY):
        await stream.write(
            fleet.ReplicaReport(replica_id="r", model_name="m", model_version=1, state=state)
        )
    async with asyncio.timeout(LIMIT_S):
        async for snapshot in watch:
            if [r.state for r in snapshot.replicas] == [fleet.REPLICA_STATE_READY]:
                break
    stream.cancel()


async def test_reconcile_reaches_the_loop(control: _Control) -> None:
    await control.stub.Reconcile(fleet.ReconcileRequest())
    assert control.reconciler.num_calls == 1


async def test_an_attach_without_a_report_ends(control: _Control) -> None:
    stream = control.stub.Attach()
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
