"""What a client changes of one worker is changed in all of them, and in those that come later."""

import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tests.integration.gateway.workers.worker_gateway import (
    COUNTED,
    RunningGateway,
    running_gateway,
)

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
Client = InferenceServerClient


@pytest.fixture
async def gateway(echo_fleet: "Fleet") -> AsyncIterator[RunningGateway]:
    """Two workers whose settings clients may change, and which take shared memory."""
    traced = {"OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER_ARG": "0"}
    async with running_gateway(echo_fleet, traced, admin=True, shared_memory=True) as running:
        yield running


@pytest.fixture
def key() -> str:
    """The region's name in the system."""
    return f"smelt-{uuid.uuid4().hex}"


@pytest.fixture
def region(key: str) -> Iterator[Any]:
    """A region that a client made, with the values in it."""
    handle = shm.create_shared_memory_region("region", key, VALUES.nbytes)
    shm.set_shared_memory_region(handle, [VALUES])
    yield handle
    if Path("/dev/shm", key).exists():
        shm.destroy_shared_memory_region(handle)


async def _client(url: str, stack: AsyncExitStack) -> Client:
    """One with a connection of its own, to whichever worker the kernel chooses."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return await stack.enter_async_context(Client(url, channel_args=own))


async def _clients(gateway: RunningGateway, stack: AsyncExitStack) -> list[Client]:
    """Clients of which some are at each worker."""
    found: list[Client] = []
    tensor = InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(VALUES)
    while len(found) < 100:
        found.append(await _client(gateway.url, stack))
        await found[-1].infer("echo", [tensor])
        page = await gateway.scrape()
        if COUNTED % 0 in page and COUNTED % 1 in page:
            return found
    raise AssertionError("the kernel gives every connection to one worker")


async def _asks_from_region(client: Client) -> None:
    tensor = InferInput("x", [1, 4], "FP32")
    tensor.set_shared_memory("region", VALUES.nbytes)
    result = await client.infer("echo", [tensor])
    np.testing.assert_array_equal(result.as_numpy("y"), VALUES)


async def _seen(client: Client) -> tuple[list[str], str, bool, list[str]]:
    """All that can be changed, as one worker tells it."""
    trace = await client.get_trace_settings(as_json=True)
    log = await client.get_log_settings(as_json=True)
    regions = await client.get_system_shared_memory_status(as_json=True)
    return (
        trace["settings"]["trace_rate"]["value"],
        trace["settings"]["trace_level"]["value"][0],
        log["settings"]["log_info"].get("bool_param", False),
        sorted(regions.get("regions", {})),
    )


async def test_a_change_reaches_all_workers_and_those_that_come_later(
    gateway: RunningGateway, region: Any, key: str
) -> None:
    async with AsyncExitStack() as stack:
        clients = await _clients(gateway, stack)
        before = (["1000"], "OFF", True, list[str]())
        assert [await _seen(each) for each in clients] == [before] * len(clients)
        first, last = clients[0], clients[-1]  # at different workers
        await first.register_system_shared_memory("region", key, VALUES.nbytes)
        await last.update_trace_settings(settings={"trace_rate": "7"})
        await first.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        await last.update_log_settings({"log_info": False})
        after = (["7"], "TIMESTAMPS", False, ["region"])
        assert [await _seen(each) for each in clients] == [after] * len(clients)
        for each in clients:
            await _asks_from_region(each)
    # What has its name now, if anything, is another object: workers keep the one they had.
    shm.destroy_shared_memory_region(region)
    victim = gateway.workers()[0]
    victim.send_signal(signal.SIGKILL)
    await gateway.until_replaced(victim)
    async with AsyncExitStack() as stack:
        clients = await _clients(gateway, stack)
        assert [await _seen(each) for each in clients] == [after] * len(clients)
        for each in clients:
            await _asks_from_region(each)
        await clients[-1].unregister_system_shared_memory("region")
        assert [(await _seen(each))[-1] for each in clients] == [[]] * len(clients)


async def test_a_model_that_is_unloaded_or_loaded_is_so_at_all_workers(
    gateway: RunningGateway,
) -> None:
    async with AsyncExitStack() as stack:
        clients = await _clients(gateway, stack)
        await clients[0].unload_model("echo")
        assert not any([await each.is_model_ready("echo") for each in clients])
        await clients[-1].load_model("echo")
        assert all([await each.is_model_ready("echo") for each in clients])


_REFUSED = {
    "no such object": (
        lambda c: c.register_system_shared_memory("r", "/smelt-none", 1),
        "No such file",
    ),
    "levels with a gap": (
        lambda c: c.update_log_settings({"log_error": False}),
        "which needs log_error",
    ),
    "a wrong rate": (
        lambda c: c.update_trace_settings(settings={"trace_rate": "x"}),
        "expected one number",
    ),
    "too long": (
        lambda c: c.register_system_shared_memory("r", "k" * 70_000, 1),
        "at most 65536 bytes",
    ),
}


async def test_what_cannot_be_changed_is_changed_nowhere(gateway: RunningGateway) -> None:
    async with AsyncExitStack() as stack:
        clients = await _clients(gateway, stack)
        before = await _seen(clients[0])
        for ask, message in _REFUSED.values():
            with pytest.raises(InferenceServerException, match=message) as caught:
                await ask(clients[0])
            assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert [await _seen(each) for each in clients] == [before] * len(clients)
