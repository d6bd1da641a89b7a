"""Requests that come while the only replica of their model is replaced wait for the next one."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.errors import NotReadyError
from services.contracts.transport.frames import InferFrame
from services.pb import fleet_v1_pb2 as fleet
from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet, ReplicaServer

LABELS = {"model": "echo", "version": "1"}


@pytest.fixture
async def client(fleet_of: "Fleet", new_model: Callable[..., Any]) -> InferenceServerClient:
    """Of a gateway whose only model has one replica, `r1`, with an admin's RPCs switched on."""
    fleet_of.add_model(new_model())
    await fleet_of.add_replica("r1")
    return await _gateway_with(fleet_of)


async def _gateway_with(fleet_of: "Fleet", **settings: Any) -> InferenceServerClient:
    await fleet_of.start_gateway(admin=True, **settings)
    await fleet_of.until_ready("r1")
    return await fleet_of.client()


async def _kill(fleet_of: "Fleet") -> "ReplicaServer":
    """End the only replica, and return once the gateway has noticed."""
    replica = fleet_of.replicas["r1"]
    replica.die()
    await fleet_of.until(lambda: not fleet_of.routed())
    return replica


async def _held(fleet_of: "Fleet", num: int) -> None:
    """Return once so many requests wait."""
    await fleet_of.until_metric(num, "smelt_requests_held", **LABELS)


def _started(asked: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(asked)


async def _status_of(asked: Any) -> tuple[str, str]:
    """Status and message with which a request fails."""
    with pytest.raises(InferenceServerException) as caught:
        await asked
    return str(caught.value.status()).removeprefix("StatusCode."), caught.value.message()


async def test_no_request_fails_while_the_only_replica_is_replaced(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    """Under load, in flight and new; the next replica is another process at another address."""
    answered = Counter[str]()
    enough = defaultdict[str, asyncio.Event](asyncio.Event)
    is_over = asyncio.Event()
    ahead = asyncio.Semaphore(8)

    def note(result: Any) -> None:
        name = who(result)
        answered[name] += 1
        if answered[name] == 200:
            enough[name].set()

    async def call() -> None:
        while not is_over.is_set():
            note(await client.infer("echo", inputs(), client_timeout=60.0))

    async def streamed() -> AsyncIterator[dict[str, Any]]:
        while not is_over.is_set():
            await ahead.acquire()
            yield {"model_name": "echo", "inputs": inputs()}

    async def stream() -> None:
        async for result, error in client.stream_infer(streamed()):
            assert error is None
            note(result)
            ahead.release()

    async with asyncio.timeout(60), asyncio.TaskGroup() as callers:
        for _ in range(16):
            callers.create_task(call())
        callers.create_task(stream())
        await enough["r1"].wait()
        fleet_of.replicas["r1"].die()
        await fleet_of.until(lambda: not fleet_of.routed())
        assert not await client.is_model_ready("echo")
        await asyncio.sleep(1.0)
        assert not answered["r2"]
        fleet_of.controller.snapshot.replicas.remove(fleet_of.report_of("r1"))
        await fleet_of.add_replica("r2")
        await fleet_of.until_ready("r2")
        await enough["r2"].wait()
        is_over.set()
    await _held(fleet_of, 0)
    sent = fleet_of.metric("smelt_request_held_duration_seconds_count", **LABELS, outcome="sent")
    assert sent
    assert sent >= 16
    assert fleet_of.metric("smelt_requests_total", **LABELS, code="UNAVAILABLE") is None


async def test_what_was_in_flight_is_sent_once_more_and_no_third_time(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    replica = fleet_of.replicas["r1"]

    async def die(frame: InferFrame) -> bytes:
        replica.die()
        return b""

    replica.answer = die
    asked = _started(client.infer("echo", inputs()))
    await _held(fleet_of, 1)
    await replica.come_back(fleet_of.report_of("r1").addresses[0])
    code, message = await _status_of(asked)
    assert (code, replica.num_requests) == ("UNAVAILABLE", 2)
    assert "two replicas in a row were lost" in message


async def test_requests_are_sent_in_the_order_in_which_they_came(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    replica = await _kill(fleet_of)
    asked = []
    for number in range(8):
        asked.append(_started(client.infer("echo", inputs(), request_id=str(number))))
        await _held(fleet_of, number + 1)
    await replica.come_back(fleet_of.report_of("r1").addresses[0])
    await asyncio.gather(*asked)
    assert [frame.trace for frame in replica.frames] == [str(number) for number in range(8)]


async def test_a_draining_replica_is_waited_out(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    async def refuse(frame: InferFrame) -> bytes:
        raise NotReadyError("draining")

    fleet_of.replicas["r1"].answer = refuse
    asked = _started(client.infer("echo", inputs()))
    await _held(fleet_of, 1)
    fleet_of.report_of("r1").state = fleet.REPLICA_STATE_DRAINING
    await fleet_of.add_replica("r2")
    await fleet_of.until_ready("r2")
    assert who(await asked) == "r2"


async def test_each_waits_for_its_own_deadline_or_the_setting(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    await client.infer("echo", inputs())
    request = bytes(fleet_of.replicas["r1"].frames[-1].request)
    await _kill(fleet_of)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await fleet_of.status_in("300m", request) == 4  # DEADLINE_EXCEEDED
    assert 0.25 < loop.time() - began_s < 25
    expired = {"outcome": "expired"} | LABELS
    assert fleet_of.metric("smelt_request_held_duration_seconds_count", **expired) == 1.0
    await _held(fleet_of, 0)
    client = await _gateway_with_lost_replica(fleet_of, hold_s=0.3)
    code, message = await _status_of(client.infer("echo", inputs()))
    assert code == "UNAVAILABLE"
    assert "waited 0.3 s for one; retry later or raise SMELT_GATEWAY_HOLD_S" in message


async def _gateway_with_lost_replica(fleet_of: "Fleet", **settings: Any) -> InferenceServerClient:
    replica = fleet_of.replicas["r1"]
    if replica.dying:
        await replica.come_back(fleet_of.report_of("r1").addresses[0])
    client = await _gateway_with(fleet_of, **settings)
    await _kill(fleet_of)
    return client


@pytest.mark.parametrize(
    ("settings", "num_held", "words"),
    [
        ({"hold_s": 0.0}, 0, "its replicas are starting, or were just lost$"),
        ({"max_in_flight": 5}, 3, "3 requests of .* bytes wait on this gateway, its bounds are 3"),
        ({"max_upload_bytes": 400}, 2, "2 requests of .* bytes wait .* bounds are 4096 and 100;"),
    ],
)
async def test_what_is_beyond_the_bounds_is_refused_at_once(
    fleet_of: "Fleet",
    client: InferenceServerClient,
    inputs: Inputs,
    settings: dict[str, Any],
    num_held: int,
    words: str,
) -> None:
    client = await _gateway_with_lost_replica(fleet_of, **settings)
    asked = [_started(client.infer("echo", inputs())) for _ in range(num_held)]
    if num_held:
        await _held(fleet_of, num_held)
    async with asyncio.timeout(30):
        with pytest.raises(InferenceServerException, match=words) as caught:
            await client.infer("echo", inputs())
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    await fleet_of.replicas["r1"].come_back(fleet_of.report_of("r1").addresses[0])
    await asyncio.gather(*asked)


async def test_a_models_own_bound_holds_for_what_waits(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    client = await _gateway_with_lost_replica(fleet_of, model_max_in_flight={"echo": 2})
    asked = [_started(client.infer("echo", inputs())) for _ in range(2)]
    await _held(fleet_of, 2)
    code, message = await _status_of(client.infer("echo", inputs()))
    assert (code, "model 'echo' on this gateway has 2" in message) == ("RESOURCE_EXHAUSTED", True)
    await fleet_of.replicas["r1"].come_back(fleet_of.report_of("r1").addresses[0])
    await asyncio.gather(*asked)


def _remove(fleet_of: "Fleet") -> None:
    del fleet_of.controller.snapshot.models[:]


def _unload(fleet_of: "Fleet") -> None:
    fleet_of.controller.snapshot.models[0].is_unloaded = True


def _fail(fleet_of: "Fleet") -> None:
    model = fleet_of.controller.snapshot.models[0]
    model.state, model.reason = "UNAVAILABLE", "its replicas failed"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (_remove, "NOT_FOUND", "'echo' is not found"),
        (_unload, "UNAVAILABLE", "smelt models load echo"),
        (_fail, "UNAVAILABLE", "its replicas failed"),
    ],
)
async def test_a_model_that_will_not_return_is_not_waited_for(
    fleet_of: "Fleet",
    client: InferenceServerClient,
    inputs: Inputs,
    change: Callable[["Fleet"], None],
    code: str,
    words: str,
) -> None:
    await _kill(fleet_of)
    asked = [_started(client.infer("echo", inputs())) for _ in range(3)]
    await _held(fleet_of, 3)
    change(fleet_of)
    fleet_of.controller.publish()
    async with asyncio.timeout(30):
        for each in asked:
            found, message = await _status_of(each)
            assert (found, words in message) == (code, True), message
    await _held(fleet_of, 0)


async def test_a_model_that_is_loaded_again_has_never_served(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    """Of its replicas nobody knows when they are ready, as of those of a new one."""
    await _kill(fleet_of)
    endpoints, model = fleet_of.gateway.endpoints, fleet_of.controller.snapshot.models[0]
    model.is_unloaded = True
    fleet_of.controller.publish()
    await fleet_of.until(lambda: not endpoints.table.view.is_served("echo", 1))
    model.is_unloaded = False
    fleet_of.controller.publish()
    await fleet_of.until(lambda: endpoints.table.view.is_served("echo", 1))
    code, message = await _status_of(client.infer("echo", inputs()))
    assert (code, "has no ready replica" in message) == ("UNAVAILABLE", True)


async def test_who_gives_up_leaves_nothing_held(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    await _kill(fleet_of)
    asked = [_started(client.infer("echo", inputs())) for _ in range(3)]
    await _held(fleet_of, 3)
    for each in asked:
        each.cancel()
    await _held(fleet_of, 0)
    cancelled = {"outcome": "cancelled"} | LABELS
    assert fleet_of.metric("smelt_request_held_duration_seconds_count", **cancelled) == 3.0
    for each in asked:
        with contextlib.suppress(asyncio.CancelledError):
            await each


async def test_replicas_come_back_without_the_controller(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    await fleet_of.controller.stop()
    replica = await _kill(fleet_of)
    asked = _started(client.infer("echo", inputs()))
    await _held(fleet_of, 1)
    await replica.come_back(fleet_of.report_of("r1").addresses[0])
    assert who(await asked) == "r1"


async def test_requests_wait_while_a_new_version_takes_the_place_of_the_old_one(
    fleet_of: "Fleet",
    client: InferenceServerClient,
    inputs: Inputs,
    new_model: Callable[..., Any],
) -> None:
    """As on a GPU that has no room for both: those that name no version."""
    snapshot = fleet_of.controller.snapshot
    await client.infer("echo", inputs())
    fleet_of.add_model(new_model(version=2))
    del snapshot.models[0]
    snapshot.replicas.remove(fleet_of.report_of("r1"))
    fleet_of.controller.publish()
    await fleet_of.until(lambda: not fleet_of.routed())
    asked = _started(client.infer("echo", inputs()))
    await fleet_of.until_metric(1, "smelt_requests_held", model="echo", version="2")
    assert (await _status_of(client.infer("echo", inputs(), model_version="1")))[0] == "NOT_FOUND"
    await fleet_of.add_replica("r2", version=2)
    await fleet_of.until_ready("r2")
    assert who(await asked) == "r2"
