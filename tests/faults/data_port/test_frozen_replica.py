"""A replica process that stands still keeps its connection open: only pings find that out."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.contracts.errors import ConnectionLostError
from services.contracts.kserve.tensor_spec import TensorSpec
from services.contracts.model.manifest import MasterRecord, ModelVersion
from services.contracts.model.recipe import Bucket, DimRange, Recipe
from services.contracts.transport.frames import NO_TOKEN
from services.gateway.routing.endpoints import EndpointSet
from services.gateway.routing.fleet_view import (
    DiscoveredFleet,
    EngineInUse,
    ReplicaInfo,
    ServedModel,
)
from services.gateway.upstream.endpoint import Endpoint
from services.gateway.upstream.replica_connection import connect
from tests.faults.data_port.replica_process import ReplicaProcess, replica_process

ENGINE = EngineInUse(digest="", kind="", precision="", generation="", fallback_reason="")
TENSOR = TensorSpec(name="x", datatype="FP32", shape=("batch",))
MODEL = ModelVersion(
    name="m",
    version=1,
    master=MasterRecord(
        digest="d" * 64, files={}, inputs=(TENSOR,), outputs=(TENSOR,), opset=23, num_parameters=0
    ),
    recipe=Recipe(buckets=(Bucket(dims={"batch": DimRange(min=1, opt=1, max=1)}),)),
    source="test",
    source_fingerprint="f",
    created_at="2025-01-01T00:00:00Z",
)


def _view(addresses: tuple[str, ...], *, is_ready: bool) -> DiscoveredFleet:
    replica = ReplicaInfo(
        replica_id="r1",
        model_name="m",
        model_version=1,
        is_ready=is_ready,
        addresses=addresses,
        token=NO_TOKEN,
        host_id="here",
        generation="",
        engine=ENGINE,
    )
    served = ServedModel(document=MODEL, state="READY", reason="")
    return DiscoveredFleet(is_known=True, models={"m": {1: served}}, replicas={"r1": replica})


@pytest.fixture
async def endpoints(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EndpointSet]:
    """Of a gateway that asks for signs of life more often than ours do."""
    monkeypatch.setattr("services.gateway.upstream.holder.PING_EVERY_S", 0.05)
    monkeypatch.setattr("services.gateway.upstream.holder.PING_TIMEOUT_S", 3.0)
    endpoints = EndpointSet(host_id="here", connect=connect)
    yield endpoints
    endpoints.close()


async def _connected(endpoints: EndpointSet, replica: ReplicaProcess) -> Endpoint:
    """The connection to a replica that the controller lists as ready."""
    addresses = tuple(replica.addresses.values())
    endpoints.apply(_view(addresses, is_ready=True))
    await endpoints.settle(30)
    ((endpoint,),) = endpoints.peers()
    return endpoint


async def test_what_a_retired_replica_owes_is_given_up_when_it_freezes(
    endpoints: EndpointSet, tmp_path: Path
) -> None:
    """Nothing new is sent to it, but what was sent before must not wait for ever."""
    async with replica_process(tmp_path) as replica:
        endpoint = await _connected(endpoints, replica)
        owed = [asyncio.create_task(endpoint.infer(b"hang", None, trace="")) for _ in range(3)]
        await endpoint.connection.ping()
        endpoints.apply(_view((), is_ready=False))
        assert endpoint.is_retired
        replica.process.send_signal(signal.SIGSTOP)
        errors = await asyncio.wait_for(asyncio.gather(*owed, return_exceptions=True), 30)
        assert [type(error) for error in errors] == [ConnectionLostError] * 3
        assert all(error.may_have_run for error in errors)


async def test_a_retired_replica_that_lives_is_waited_for(
    endpoints: EndpointSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica_process(tmp_path) as replica:
        endpoint = await _connected(endpoints, replica)
        owed = asyncio.create_task(endpoint.infer(b"hang", None, trace=""))
        await endpoint.connection.ping()
        endpoints.apply(_view((), is_ready=False))
        await _answered_pings(endpoint, monkeypatch, 3)
        assert not owed.done()
        owed.cancel()
        # The last answer is no longer owed: now the connection goes.
        await asyncio.wait_for(endpoint.connection.wait_lost(), 30)


async def _answered_pings(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Wait until the gateway has asked that often, and was answered."""
    answered, ping = asyncio.Semaphore(0), endpoint.connection.ping

    async def counted() -> None:
        await ping()
        answered.release()

    monkeypatch.setattr(endpoint.connection, "ping", counted)
    async with asyncio.timeout(30):
        for _ in range(number):
            await answered.acquire()
