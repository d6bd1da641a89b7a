"""Sessions, shares, bounds and outliers, as clients of a real gateway meet them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.errors import EngineError, InputRefusedError, OverloadedError
from services.contracts.model.manifest import ModelVersion
from services.contracts.transport.frames import InferFrame
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet, ReplicaServer

LABELS = {"model": "echo", "version": "1"}
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def _ask(client: InferenceServerClient, inputs: Inputs, session: str = "") -> str:
    """Who answered."""
    headers = {"smelt-session": session} if session else {}
    answer = await client.infer("echo", inputs(), headers=headers)
    return str(answer.get_response().parameters["replica"].string_param)


def _raising(error: Exception) -> Callable[[InferFrame], Any]:
    async def answer(_: InferFrame) -> bytes:
        raise error

    return answer


class Held:
    """Requests that wait in their replicas."""

    def __init__(self, replicas: list["ReplicaServer"]) -> None:
        self.finish, self._echo = asyncio.Event(), replicas[0]
        self._arrived, self._cancelled = asyncio.Semaphore(0), asyncio.Semaphore(0)
        for replica in replicas:
            replica.answer = self._wait

    async def _wait(self, frame: InferFrame) -> bytes:
        self._arrived.release()
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self._cancelled.release()
            raise
        return await self._echo.echo(frame)

    @property
    def has_any(self) -> bool:
        """Whether one has arrived that nobody waited for yet."""
        return not self._arrived.locked()

    async def arrived(self, num: int) -> None:
        """Return once so many more are there."""
        async with asyncio.timeout(30):
            for _ in range(num):
                await self._arrived.acquire()

    async def cancelled(self) -> None:
        """Return once one more was given up."""
        async with asyncio.timeout(30):
            await self._cancelled.acquire()


async def test_a_session_stays_with_its_replica_until_that_is_gone(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    sessions = [f"user-{number}" for number in range(20)]
    owners = {each: {await _ask(client, inputs, each) for _ in range(3)} for each in sessions}
    assert Counter(len(names) for names in owners.values()) == {1: 20}
    assert {name for names in owners.values() for name in names} == {"r1", "r2"}
    echo_fleet.replicas["r1"].die()
    assert {await _ask(client, inputs, each) for each in sessions} == {"r2"}


async def test_a_session_that_is_too_much_for_its_replica_goes_elsewhere(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    owner = await _ask(client, inputs, "user")
    echo_fleet.replicas[owner].answer = _raising(OverloadedError("the queue is full"))
    assert await _ask(client, inputs, "user") != owner
    for replica in echo_fleet.replicas.values():
        replica.answer = _raising(OverloadedError("the queue is full", retry_after_s=0.25))
    async with grpc.aio.insecure_channel(echo_fleet.url) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        request = bytes(echo_fleet.replicas[owner].frames[-1].request)
        with pytest.raises(grpc.aio.AioRpcError, match="the queue is full") as caught:
            await call(request, metadata=(("smelt-session", "user"),))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(caught.value.trailing_metadata())["retry-after-ms"]) > 0
    rejected = "smelt_requests_rejected_total"
    await echo_fleet.until_metric(1.0, rejected, reason="replica", **LABELS)


async def test_versions_share_what_names_none_of_them(
    fleet_of: "Fleet", inputs: Inputs, new_model: Callable[..., ModelVersion]
) -> None:
    for version in (1, 2, 3):
        fleet_of.add_model(new_model(version=version))
        await fleet_of.add_replica(f"r{version}", version=version)
    models = fleet_of.controller.snapshot.models
    models[0].weight, models[1].weight = 3.0, 1.0
    await fleet_of.until_ready("r1", "r2", "r3")
    client = await fleet_of.client()
    counts = Counter([await _ask(client, inputs) for _ in range(200)])
    assert counts.keys() == {"r1", "r2"}
    assert 110 < counts["r1"] < 185
    answer = await client.infer("echo", inputs(), model_version="3")
    assert answer.get_response().parameters["replica"].string_param == "r3"
    # A session stays with a version, too.
    assert len({await _ask(client, inputs, "user") for _ in range(10)}) == 1
    # A version that nobody can ask leaves its share to the other, also in the middle.
    fleet_of.replicas["r1"].die()
    assert {await _ask(client, inputs) for _ in range(20)} == {"r2"}


async def test_a_model_has_a_bound_of_its_own(
    echo_fleet: "Fleet", inputs: Inputs, new_model: Callable[..., ModelVersion]
) -> None:
    echo_fleet.add_model(new_model("free"))
    await echo_fleet.add_replica("r3", "free")
    await echo_fleet.start_gateway(model_max_in_flight={"echo": 2})
    await echo_fleet.until_ready("r1", "r2", "r3")
    client = await echo_fleet.client()
    held = Held([echo_fleet.replicas["r1"], echo_fleet.replicas["r2"]])
    asked = [asyncio.ensure_future(client.infer("echo", inputs())) for _ in range(2)]
    await held.arrived(2)
    with pytest.raises(InferenceServerException, match="model 'echo' on this gateway has 2 req"):
        await client.infer("echo", inputs())
    assert await client.infer("free", inputs())
    await echo_fleet.until_metric(1.0, "smelt_requests_rejected_total", reason="model", **LABELS)
    held.finish.set()
    await asyncio.gather(*asked)
    assert await client.infer("echo", inputs())


async def test_a_replica_that_only_fails_is_left_out_for_a_while(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await echo_fleet.start_gateway(eject_after_failures=3, eject_s=600.0, slow_start_s=0.0)
    await echo_fleet.until_ready("r1", "r2")
    client, num_failed = await echo_fleet.client(), 0
    echo_fleet.replicas["r1"].answer = _raising(EngineError("the device is broken"))
    for _ in range(100):
        try:
            await client.infer("echo", inputs())
        except InferenceServerException as error:
            assert error.status() == "StatusCode.INTERNAL"  # noqa: PT017 - some do, some do not
            num_failed += 1
    assert num_failed == 3
    ejected = {"generation": "cpu-x86_64-v3", "reason": "failures"}
    assert echo_fleet.metric("smelt_replica_ejections_total", **LABELS, **ejected) == 1.0
    # The last one is never left out, whatever it answers.
    echo_fleet.replicas["r2"].answer = _raising(EngineError("the device is broken"))
    for _ in range(10):
        with pytest.raises(InferenceServerException, match="internal error"):
            await client.infer("echo", inputs())


async def test_inputs_that_a_model_refuses_count_against_no_replica(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    await echo_fleet.start_gateway(eject_after_failures=3, eject_s=600.0)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    for replica in echo_fleet.replicas.values():
        replica.answer = _raising(InputRefusedError("id 30522 is not in the vocabulary"))
    for _ in range(20):
        with pytest.raises(InferenceServerException, match="not in the vocabulary") as caught:
            await client.infer("echo", inputs())
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    ejected = {"generation": "cpu-x86_64-v3", "reason": "failures"}
    assert not echo_fleet.metric("smelt_replica_ejections_total", **LABELS, **ejected)


async def test_what_was_left_out_comes_back_by_itself(echo_fleet: "Fleet", inputs: Inputs) -> None:
    await echo_fleet.start_gateway(eject_after_failures=1, eject_s=0.2, slow_start_s=0.2)
    await echo_fleet.until_ready("r1", "r2")
    client, table = await echo_fleet.client(), echo_fleet.gateway.endpoints

    def num_chosen() -> int:
        return len(table.table.pools["echo", "1"].choice.endpoints)

    echo_fleet.replicas["r1"].answer = _raising(EngineError("the device is broken"))
    asked = (client.infer("echo", inputs()) for _ in range(50))
    await asyncio.gather(*asked, return_exceptions=True)
    ejected = {"generation": "cpu-x86_64-v3", "reason": "failures"}
    assert echo_fleet.metric("smelt_replica_ejections_total", **LABELS, **ejected)
    await echo_fleet.until(lambda: num_chosen() == 2)
    echo_fleet.replicas["r1"].answer = None
    assert {await _ask(client, inputs) for _ in range(50)} == {"r1", "r2"}
    # Both are warm by then, and equal.
    await echo_fleet.until(lambda: table.table.pools["echo", "1"].choice.shares == ())


async def test_who_gave_up_and_who_was_too_late_is_counted(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await echo_fleet.client()
    owner = await _ask(client, inputs)
    request = bytes(echo_fleet.replicas[owner].frames[-1].request)
    held = Held(list(echo_fleet.replicas.values()))
    timeouts = iter(("200m", "1S", "5S", "30S"))
    while not held.has_any:  # a slow machine may take longer to send it
        assert await echo_fleet.status_in(next(timeouts), request) == DEADLINE_EXCEEDED
    labels = LABELS | {"reason": "unanswered"}
    await echo_fleet.until_metric(1.0, "smelt_requests_expired_total", **labels)
    await held.cancelled()
    asked = asyncio.ensure_future(client.infer("echo", inputs()))
    await held.arrived(2)
    asked.cancel()
    await held.cancelled()
    await echo_fleet.until_metric(1.0, "smelt_requests_cancelled_total", **labels)
