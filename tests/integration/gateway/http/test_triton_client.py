"""Unmodified `tritonclient.http`, blocking and asynchronous, at the gateway's HTTP port."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tritonclient.http as blocking
import tritonclient.http.aio as asynchronous
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def input_of(array: Any = ROWS, *, is_binary: bool = True) -> list[blocking.InferInput]:
    """The input x of `echo`."""
    tensor = blocking.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return [tensor]


async def ask(fleet: "Fleet", question: Callable[[Any], Any]) -> Any:
    """What a blocking client gets, on a thread of its own."""

    def run() -> Any:
        with blocking.InferenceServerClient(f"127.0.0.1:{fleet.gateway.http_port}") as client:
            return question(client)

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("is_binary_back", [True, False, None])
async def test_tensors_in_binary_and_json_both_ways(
    http_fleet: "Fleet", is_binary: bool, is_binary_back: bool | None
) -> None:
    outputs = None
    if is_binary_back is not None:
        outputs = [blocking.InferRequestedOutput("y", binary_data=is_binary_back)]
    inputs = input_of(is_binary=is_binary)
    result = await ask(
        http_fleet, lambda client: client.infer("echo", inputs, outputs=outputs, request_id="id-1")
    )
    np.testing.assert_array_equal(result.as_numpy("y"), ROWS)
    answer = result.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("id-1", "echo", "1")
    assert ("data" in answer["outputs"][0]) is (is_binary_back is False)


@pytest.mark.parametrize("there", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
async def test_compression_both_ways(
    http_fleet: "Fleet", there: str | None, back: str | None
) -> None:
    rows = np.ones((3000, 4), np.float32)
    result = await ask(
        http_fleet,
        lambda client: client.infer(
            "echo",
            input_of(rows),
            request_compression_algorithm=there,
            response_compression_algorithm=back,
        ),
    )
    np.testing.assert_array_equal(result.as_numpy("y"), rows)


async def test_large_requests_come_whole(http_fleet: "Fleet") -> None:
    rows = np.random.default_rng(0).random((700_000, 4), np.float32)
    result = await ask(http_fleet, lambda client: client.infer("echo", input_of(rows)))
    np.testing.assert_array_equal(result.as_numpy("y"), rows)


async def test_the_asynchronous_client_is_answered_too(http_fleet: "Fleet") -> None:
    url = f"127.0.0.1:{http_fleet.gateway.http_port}"
    async with asynchronous.InferenceServerClient(url) as client:
        asked = (client.infer("echo", input_of(ROWS + n)) for n in range(20))
        for number, result in enumerate(await asyncio.gather(*asked)):
            np.testing.assert_array_equal(result.as_numpy("y"), ROWS + number)


async def test_questions_about_server_and_models(http_fleet: "Fleet") -> None:
    assert await ask(http_fleet, lambda client: client.is_server_live())
    assert await ask(http_fleet, lambda client: client.is_server_ready())
    assert await ask(http_fleet, lambda client: client.is_model_ready("echo", "1"))
    assert not await ask(http_fleet, lambda client: client.is_model_ready("none"))
    server = await ask(http_fleet, lambda client: client.get_server_metadata())
    assert server["name"] == "smelt"
    assert "binary_tensor_data" in server["extensions"]
    model = await ask(http_fleet, lambda client: client.get_model_metadata("echo"))
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    config = await ask(http_fleet, lambda client: client.get_model_config("echo", "1"))
    assert (config["max_batch_size"], config["input"][0]["data_type"]) == (8, "TYPE_FP32")
    index = await ask(http_fleet, lambda client: client.get_model_repository_index())
    assert index == [{"name": "echo", "version": "1", "state": "READY", "reason": ""}]


async def test_statistics_count_what_was_asked(http_fleet: "Fleet") -> None:
    await ask(http_fleet, lambda client: client.infer("echo", input_of()))
    for name in ("echo", ""):
        found = await ask(http_fleet, lambda client, n=name: client.get_inference_statistics(n))
        (stats,) = found["model_stats"]
        assert (stats["name"], stats["inference_count"]) == ("echo", 1)
        assert stats["inference_stats"]["success"] == {"count": 1, "ns": 1000}


async def test_an_unknown_model_is_an_error_with_its_reason(http_fleet: "Fleet") -> None:
    with pytest.raises(InferenceServerException, match="unknown model: 'none'") as no:
        await ask(http_fleet, lambda client: client.infer("none", input_of()))
    assert no.value.status() == "404"
