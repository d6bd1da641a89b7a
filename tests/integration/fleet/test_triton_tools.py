"""What Triton's own tools ask of a server, in their order, of a real fleet."""

import asyncio
import queue
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.integration.fleet.conftest import Served
from tests.integration.fleet.gateways import gateway_of
from tests.integration.fleet.onnx_files import FEATURES, TOLERANCE, answer_of

X_BF = np.random.default_rng(7).standard_normal((3, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def address(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a gateway with everything switched on."""
    folder = tmp_path_factory.mktemp("open")
    with gateway_of(served.fleet, folder, shared_memory=True, admin=True) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as client:
        yield client


def _asked() -> list[triton.InferInput]:
    tensor = triton.InferInput("x", list(X_BF.shape), "FP32")
    tensor.set_data_from_numpy(X_BF)
    return [tensor]


@contextmanager
def _registered(client: Any, name: str, num_bytes: int) -> Iterator[Any]:
    key = f"smelt-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, key, num_bytes)
    try:
        client.register_system_shared_memory(name, key, num_bytes)
        yield handle
        client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(handle)


def test_what_perf_analyzer_asks_of_a_server(
    served: Served, client: triton.InferenceServerClient
) -> None:
    # Its parser reads the model, and takes the batch dimension off where there is one.
    metadata, config = client.get_model_metadata("linear"), client.get_model_config("linear").config
    assert config.max_batch_size == 32
    (shape,) = (list(tensor.shape) for tensor in metadata.inputs)
    assert shape == [-1, *config.input[0].dims]
    assert [config.input[0].is_shape_tensor, config.input[0].optional] == [False, False]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert not config.model_transaction_policy.decoupled
    assert not config.response_cache.enable
    # It clears all regions of both kinds, then puts inputs and outputs into its own.
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    assert "statistics" in client.get_server_metadata().extensions
    with (
        _registered(client, "x_data", X_BF.nbytes) as x_data,
        _registered(client, "y_data", 256) as y_data,
    ):
        shm.set_shared_memory_region(x_data, [X_BF])
        tensor = triton.InferInput("x", list(X_BF.shape), "FP32")
        tensor.set_shared_memory("x_data", X_BF.nbytes)
        output = triton.InferRequestedOutput("y")
        output.set_shared_memory("y_data", 256)
        before = client.get_inference_statistics("linear").model_stats
        for _ in range(5):
            found = client.infer("linear", [tensor], outputs=[output]).get_output("y")
        after = client.get_inference_statistics("linear").model_stats
        dtype = triton_to_np_dtype(found.datatype)
        y = shm.get_contents_as_numpy(y_data, dtype, list(found.shape))
        assert np.allclose(y, answer_of(served.linear, X_BF), atol=TOLERANCE)
    _check_statistics(max(before, key=_version), max(after, key=_version), num_requests=5)


def _version(stats: Any) -> int:
    return int(stats.version)


def _check_statistics(before: Any, after: Any, num_requests: int) -> None:
    """As its profiler does: differences, whose counts of computing must be equal."""
    assert before.version == after.version
    assert after.inference_count - before.inference_count == num_requests * len(X_BF)
    num_runs = after.execution_count - before.execution_count
    assert 1 <= num_runs <= num_requests
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        first, last = (getattr(stats.inference_stats, name) for stats in (before, after))
        assert last.count - first.count == num_requests, name
        assert last.ns >= first.ns, name


def test_streams_and_classes(served: Served, client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result))
    wanted = [triton.InferRequestedOutput("y", class_count=2)]
    for number in range(3):
        client.async_stream_infer("linear", _asked(), outputs=wanted, request_id=str(number))
    results = [answers.get(timeout=30) for _ in range(3)]
    client.stop_stream()
    assert [result.get_response().id for result in results] == ["0", "1", "2"]
    best = answer_of(served.linear, X_BF).argsort(axis=1)[:, :-3:-1]
    for result in results:
        texts = result.as_numpy("y").tolist()
        assert [[int(text.split(b":")[1]) for text in row] for row in texts] == best.tolist()


async def test_a_model_goes_and_comes_without_a_request_that_is_lost(address: str) -> None:
    async with triton_aio.InferenceServerClient(address) as client:
        tensor = triton.InferInput("x", [1, 4], "INT64")
        tensor.set_data_from_numpy(np.arange(4, dtype=np.int64).reshape(1, 4))
        ask = partial(client.infer, "noop", [tensor])
        await ask()
        running = [asyncio.create_task(ask()) for _ in range(50)]
        await asyncio.sleep(0)
        await client.unload_model("noop")
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, InferenceServerException)]
        assert all("no ready replica: unloaded" in str(each) for each in refused), refused
        assert all(
            each.as_numpy("y").tolist() == [[0, 1, 2, 3]]
            for each in outcomes
            if each not in refused
        )
        index = await client.get_model_repository_index()
        (entry,) = (model for model in index.models if model.name == "noop")
        assert (entry.state in ("UNLOADING", "UNAVAILABLE"), entry.reason) == (True, "unloaded")
        # It counts no more. Others of this fleet may be between two versions of an earlier test.
        async with asyncio.timeout(60):
            while not await client.is_server_ready():  # noqa: ASYNC110 - Triton sends no event
                await asyncio.sleep(0.05)
        await client.load_model("noop", client_timeout=150)
        assert (await ask()).as_numpy("y").tolist() == [[0, 1, 2, 3]]
