"""Tensors in system shared memory, with unmodified tritonclient on both sides of it."""

import asyncio
import hashlib
import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
import yaml
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.errors import InvalidRequestError
from services.contracts.transport.frames import InferFrame
from services.gateway.shared_memory.regions import FOLDER, MAX_REGIONS, SharedMemoryRegions
from services.pb import open_inference_v2_pb2 as pb

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
NUM_BYTES = VALUES.nbytes
# Inputs at the beginning, outputs behind them.
REGION_BYTES = 4096


@pytest.fixture
def key() -> str:
    """The region's name in the system."""
    return f"smelt-{uuid.uuid4().hex}"


@pytest.fixture
def region(key: str) -> Iterator[Any]:
    """A region that a client made, with the values at its begin."""
    handle = shm.create_shared_memory_region("region", key, REGION_BYTES)
    shm.set_shared_memory_region(handle, [VALUES])
    yield handle
    shm.destroy_shared_memory_region(handle)


@pytest.fixture
async def client(echo_fleet: "Fleet") -> InferenceServerClient:
    """Of a gateway that takes shared memory."""
    await echo_fleet.start_gateway(shared_memory=True)
    await echo_fleet.until_ready("r1", "r2")
    return await echo_fleet.client()


async def test_what_lies_in_regions_counts_as_the_request(
    echo_fleet: "Fleet", region: Any, key: str
) -> None:
    await echo_fleet.start_gateway(shared_memory=True, max_message_bytes=1024)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    await _register(client, key)
    with pytest.raises(InferenceServerException, match="at most 1024 bytes are accepted"):
        await client.infer("echo", _input(num_bytes=2048))


async def _register(client: InferenceServerClient, key: str) -> None:
    await client.register_system_shared_memory("region", key, REGION_BYTES)


def _input(offset: int = 0, num_bytes: int = NUM_BYTES, name: str = "region") -> list[InferInput]:
    tensor = InferInput("x", list(VALUES.shape), "FP32")
    tensor.set_shared_memory(name, num_bytes, offset)
    return [tensor]


def _output(offset: int, num_bytes: int = NUM_BYTES) -> list[InferRequestedOutput]:
    output = InferRequestedOutput("y")
    output.set_shared_memory("region", num_bytes, offset)
    return [output]


async def test_inputs_and_outputs_stay_in_the_region(
    echo_fleet: "Fleet", client: InferenceServerClient, region: Any, key: str
) -> None:
    assert "system_shared_memory" in (await client.get_server_metadata()).extensions
    await _register(client, key)
    status = (await client.get_system_shared_memory_status()).regions["region"]
    assert (status.key, status.offset, status.byte_size) == (key, 0, REGION_BYTES)
    result = await client.infer("echo", _input(), outputs=_output(NUM_BYTES), request_id="7")
    (frame,) = (f for each in echo_fleet.replicas.values() for f in each.frames)
    (asked,) = pb.ModelInferRequest.FromString(bytes(frame.request)).outputs
    # Of the place a replica sees the room alone, beyond which it refuses.
    room = pb.InferParameter(int64_param=NUM_BYTES)
    assert dict(asked.parameters) == {"shared_memory_byte_size": room}
    answer = result.get_response()
    assert (answer.id, list(answer.raw_output_contents)) == ("7", [b""])
    assert answer.outputs[0].parameters["shared_memory_byte_size"].int64_param == NUM_BYTES
    shape = list(result.get_output("y").shape)
    found = shm.get_contents_as_numpy(region, np.float32, shape, NUM_BYTES)
    np.testing.assert_array_equal(found, VALUES)


async def test_one_side_alone_may_be_shared_and_streams_too(
    client: InferenceServerClient, region: Any, key: str, inputs: Callable[..., list[InferInput]]
) -> None:
    await _register(client, key)
    result = await client.infer("echo", _input())
    np.testing.assert_array_equal(result.as_numpy("y"), VALUES)

    async def asked() -> Any:
        yield {"model_name": "echo", "inputs": inputs(5.0), "outputs": _output(0, 16)}

    async for _, error in client.stream_infer(asked()):
        assert error is None
    found = shm.get_contents_as_numpy(region, np.float32, [4], 0)
    np.testing.assert_array_equal(found, np.full(4, 5.0))


_REFUSED: dict[str, tuple[Callable[[InferenceServerClient], Awaitable[Any]], str]] = {
    "no region": (lambda c: c.infer("echo", _input(name="other")), "Unable to find.*'other'"),
    "beyond the end": (
        lambda c: c.infer("echo", _input(REGION_BYTES - 8)),
        r"its 4096 bytes, got 48 .* 4088",
    ),
    "negative": (lambda c: c.infer("echo", _input(-4)), "Invalid offset"),
    "room for less": (
        lambda c: c.infer("echo", _input(), outputs=_output(0, 8)),
        r"\(8 bytes\).*at least 48",
    ),
    "taken name": (
        lambda c: c.register_system_shared_memory("region", "x", 1),
        "already in manager",
    ),
    "unknown name": (lambda c: c.get_system_shared_memory_status("nope"), "Unable to find"),
}


@pytest.mark.parametrize("fault", _REFUSED)
async def test_wrong_places_are_refused(
    client: InferenceServerClient, region: Any, key: str, fault: str
) -> None:
    await _register(client, key)
    ask, message = _REFUSED[fault]
    with pytest.raises(InferenceServerException, match=message):
        await ask(client)
    np.testing.assert_array_equal(
        shm.get_contents_as_numpy(region, np.float32, VALUES.shape), VALUES
    )


async def test_a_region_that_is_cut_short_or_unregistered_harms_its_request_alone(
    echo_fleet: "Fleet", client: InferenceServerClient, region: Any, key: str
) -> None:
    await _register(client, key)

    async def unregister_first(frame: InferFrame) -> bytes:
        await client.unregister_system_shared_memory("region")
        return await echo_fleet.replicas["r1"].echo(frame)

    for replica in echo_fleet.replicas.values():
        replica.answer = unregister_first
    await client.infer("echo", _input(), outputs=_output(NUM_BYTES))
    found = shm.get_contents_as_numpy(region, np.float32, VALUES.shape, NUM_BYTES)
    np.testing.assert_array_equal(found, VALUES)
    assert not (await client.get_system_shared_memory_status()).regions
    await _register(client, key)
    os.truncate(FOLDER / key, 16)
    with pytest.raises(InferenceServerException, match="was truncated: 32 of 48"):
        await client.infer("echo", _input())
    assert await client.is_server_live()


async def test_a_region_is_its_callers_alone(
    echo_fleet: "Fleet", region: Any, key: str, tmp_path: Path
) -> None:
    entries = [
        {
            "name": name,
            "sha256": hashlib.sha256(name.encode()).hexdigest(),
            "grants": [{"verbs": ["infer", "admin"]}],
        }
        for name in ("one", "other")
    ]
    file = tmp_path / "access.yaml"
    file.write_text(yaml.safe_dump({"tokens": entries}))
    await echo_fleet.start_gateway(shared_memory=True, access_file=file)
    await echo_fleet.until_ready("r1", "r2")
    client = await echo_fleet.client()
    one, other = ({"authorization": f"Bearer {name}"} for name in ("one", "other"))
    await client.register_system_shared_memory("region", key, REGION_BYTES, headers=one)
    for ask in (
        partial(client.infer, "echo", _input()),
        partial(client.get_system_shared_memory_status, "region"),
    ):
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            await ask(headers=other)
    assert not (await client.get_system_shared_memory_status(headers=other)).regions

    # Of the same name, and of less: whose it is decides.
    await client.register_system_shared_memory("region", key, NUM_BYTES - 1, headers=other)
    with pytest.raises(InferenceServerException, match="its 47 bytes"):
        await client.infer("echo", _input(), headers=other)
    await client.unregister_system_shared_memory(headers=other)
    result = await client.infer("echo", _input(), headers=one)
    np.testing.assert_array_equal(result.as_numpy("y"), VALUES)


LARGE_ROWS = 1 << 17
LARGE_BYTES = LARGE_ROWS * 16


@pytest.fixture
def large_region(key: str) -> Iterator[Any]:
    """Room for an input of 2 MiB and an output of the same size behind it."""
    handle = shm.create_shared_memory_region("region", key, 2 * LARGE_BYTES)
    values = np.arange(4 * LARGE_ROWS, dtype=np.float32).reshape(-1, 4)
    shm.set_shared_memory_region(handle, [values])
    yield handle
    shm.destroy_shared_memory_region(handle)


def _large_input() -> list[InferInput]:
    tensor = InferInput("x", [LARGE_ROWS, 4], "FP32")
    tensor.set_shared_memory("region", LARGE_BYTES)
    return [tensor]


async def test_large_spans_are_moved_beside_the_event_loop(
    client: InferenceServerClient, large_region: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noting(move: Callable[..., int], *arguments: Any) -> int:
        threads.append(threading.current_thread())
        return move(*arguments)

    monkeypatch.setattr(os, "preadv", partial(noting, os.preadv))
    monkeypatch.setattr(os, "pwrite", partial(noting, os.pwrite))
    await client.register_system_shared_memory("region", key, 2 * LARGE_BYTES)
    await client.infer("echo", _large_input(), outputs=_output(LARGE_BYTES, LARGE_BYTES))
    values = shm.get_contents_as_numpy(large_region, np.float32, [2, LARGE_ROWS, 4])
    np.testing.assert_array_equal(values[1], values[0])
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_a_region_is_open_until_a_cancelled_request_has_read_it(
    client: InferenceServerClient, large_region: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go = asyncio.Event(), threading.Event()
    loop, move, read = asyncio.get_running_loop(), os.preadv, asyncio.Event()

    def slow(fd: int, *arguments: Any) -> int:
        loop.call_soon_threadsafe(begun.set)
        assert may_go.wait(30)
        num_read = move(fd, *arguments)  # OSError on a file that is closed
        loop.call_soon_threadsafe(read.set)
        return num_read

    monkeypatch.setattr(os, "preadv", slow)
    await client.register_system_shared_memory("region", key, 2 * LARGE_BYTES)
    asking = asyncio.ensure_future(client.infer("echo", _large_input()))
    async with asyncio.timeout(30):
        await begun.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await client.unregister_system_shared_memory()
        may_go.set()
        await read.wait()


def _num_open(folder: Path) -> int:
    """Descriptors of what lies there: others come and go, as garbage is collected."""
    num_open = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since, as that of this list is
            num_open += descriptor.readlink().is_relative_to(folder)
    return num_open


async def test_registrations_are_kept_within_shared_memory(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    folder = tmp_path / "shm"
    (folder / "below").mkdir(parents=True)
    (folder / "link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    (folder / "good").write_bytes(b"12345678")
    regions = SharedMemoryRegions(folder)

    async def refuses(key: str, message: str, offset: int = 0, byte_size: int = 4) -> None:
        request = pb.SystemSharedMemoryRegisterRequest(
            name="r", key=key, offset=offset, byte_size=byte_size
        )
        with pytest.raises(InvalidRequestError, match=message):
            await regions.register(request)

    for key in ("../secret", "/../secret", str(secret), "..", "", "/", "below/x", "a\0b"):
        await refuses(key, "without folders")
    await refuses("link", "be no link")
    await refuses("below", "Is a directory")
    await refuses("pipe", "no shared memory object")
    await refuses("nope", "No such file")
    await refuses("good", "within the 8 bytes", offset=5)
    await refuses("good", "within the 8 bytes", offset=2**64 - 1)
    await refuses("good", "1 byte or more", byte_size=0)
    ask = pb.SystemSharedMemoryRegisterRequest(key="/good", offset=4, byte_size=4)
    for number in range(MAX_REGIONS):
        ask.name = str(number)
        await regions.register(ask)
    await refuses("good", "which is the most")
    assert _num_open(folder) == MAX_REGIONS
    room = bytearray(2)
    regions.region("3").read_into(memoryview(room), 1)
    assert room == b"67"
    await regions.unregister(pb.SystemSharedMemoryUnregisterRequest())
    assert _num_open(folder) == 0
