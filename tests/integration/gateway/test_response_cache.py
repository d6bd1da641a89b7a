"""The response cache, with unmodified Triton clients: what it answers, and what it never may."""

import hashlib
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.utils import InferenceServerException

from services.contracts.model.manifest import ModelVersion
from services.gateway.pipeline.response_cache import ENTRY_OVERHEAD_BYTES, AnswerStore, with_id
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

NewModel = Callable[..., ModelVersion]


def cached(model: ModelVersion) -> ModelVersion:
    """The same version, with the cache allowed."""
    recipe = model.recipe.model_copy(update={"response_cache": True})
    return model.model_copy(update={"recipe": recipe})


@pytest.fixture
async def cached_fleet(fleet_of: "Fleet", new_model: NewModel) -> "Fleet":
    """`echo` with the cache, `plain` without."""
    fleet_of.add_model(cached(new_model()))
    fleet_of.add_model(new_model("plain"))
    await fleet_of.add_replica("r1")
    await fleet_of.add_replica("p1", "plain")
    await fleet_of.until_ready("r1", "p1")
    return fleet_of


async def test_the_same_question_is_asked_once_and_each_answer_has_its_id(
    cached_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await cached_fleet.client()
    for request_id in ("first", "second", "", "a-longer-id" * 30):
        for version in ("", "1"):
            result = await client.infer(
                "echo", inputs(3.0), request_id=request_id, model_version=version
            )
            assert result.as_numpy("y").tolist() == [[3.0] * 4]
            assert result.get_response().id == request_id
            assert result.get_response().model_version == "1"
    assert cached_fleet.replicas["r1"].num_requests == 1


async def test_another_question_is_asked(cached_fleet: "Fleet", inputs: Inputs) -> None:
    client = await cached_fleet.client()
    for value in (1.0, 2.0, 1.0, 2.0):
        result = await client.infer("echo", inputs(value))
        assert result.as_numpy("y").tolist() == [[value] * 4]
    await client.infer("echo", inputs(1.0, rows=2))
    await client.infer("echo", inputs(1.0), parameters={"seed": 1})
    assert cached_fleet.replicas["r1"].num_requests == 4


async def test_a_model_that_did_not_ask_for_it_is_asked_every_time(
    cached_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await cached_fleet.client()
    for _ in range(3):
        await client.infer("plain", inputs())
    assert cached_fleet.replicas["p1"].num_requests == 3


async def test_a_head_that_is_too_large_to_be_parsed_is_compared_as_it_came(
    cached_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await cached_fleet.client()
    forth = {f"p{number}": "x" * 300 for number in range(300)}
    for parameters in (forth, forth, forth | {"p7": "y"}):
        await client.infer("echo", inputs(), parameters=parameters)
    assert cached_fleet.replicas["r1"].num_requests == 2


async def test_a_small_head_may_name_its_parameters_in_any_order(cached_fleet: "Fleet") -> None:
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(16)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    entries = [pb.ModelInferRequest(parameters={k: pb.InferParameter(int64_param=1)}) for k in "ab"]
    heads = [each.SerializeToString() for each in entries]
    async with grpc.aio.insecure_channel(cached_fleet.url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for ordered in (heads, heads[::-1]):
            await infer(b"".join((request.SerializeToString(), *ordered)))
    assert cached_fleet.replicas["r1"].num_requests == 1


async def test_the_digest_of_a_large_request_is_made_beside_the_event_loop(
    cached_fleet: "Fleet", inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noting(**options: Any) -> Any:
        threads.append(threading.current_thread())
        return hashlib.blake2b(**options)

    client = await cached_fleet.client()
    monkeypatch.setattr(
        "services.gateway.pipeline.response_cache.hashlib", types.SimpleNamespace(blake2b=noting)
    )
    for rows in (1, 100_000, 100_000):
        await client.infer("echo", inputs(rows=rows))
    assert threads[0] is threading.main_thread()
    assert threading.main_thread() not in threads[1:]
    assert (len(threads), cached_fleet.replicas["r1"].num_requests) == (3, 2)


async def test_an_error_is_not_kept(cached_fleet: "Fleet", inputs: Inputs) -> None:
    client = await cached_fleet.client()
    replica = cached_fleet.replicas["r1"]

    async def refuse(frame: Any) -> bytes:
        from services.contracts.errors import InvalidRequestError

        raise InvalidRequestError("not now")

    replica.answer = refuse
    with pytest.raises(InferenceServerException, match="not now"):
        await client.infer("echo", inputs())
    replica.answer = None
    assert (await client.infer("echo", inputs())).as_numpy("y").shape == (1, 4)


async def test_a_new_version_has_answers_of_its_own(
    cached_fleet: "Fleet", inputs: Inputs, new_model: NewModel
) -> None:
    client = await cached_fleet.client()
    await client.infer("echo", inputs())
    cached_fleet.add_model(cached(new_model("echo", 2)))
    second = await cached_fleet.add_replica("r2", version=2)
    await cached_fleet.until_ready("r1", "r2", "p1")
    result = await client.infer("echo", inputs())
    assert result.get_response().model_version == "2"
    assert second.num_requests == 1


async def test_hits_and_misses_are_counted_as_triton_counts_them(
    cached_fleet: "Fleet", inputs: Inputs
) -> None:
    client = await cached_fleet.client()
    for _ in range(3):
        await client.infer("echo", inputs())
    (stats,) = (await client.get_inference_statistics("echo")).model_stats
    counted = stats.inference_stats
    assert (counted.cache_hit.count, counted.cache_miss.count) == (2, 1)
    # Else perf_analyzer prints "Request count: 0" of a server that answered from its cache.
    assert (counted.success.count, counted.queue.count) == (3, 3)
    assert (stats.inference_count, counted.compute_infer.count) == (1, 1)
    labels = {"model": "echo", "version": "1"}
    await cached_fleet.until_metric(2, "smelt_response_cache_hits_total", **labels)
    await cached_fleet.until_metric(1, "smelt_response_cache_misses_total", **labels)
    await cached_fleet.until_metric(3, "smelt_requests_total", code="OK", **labels)


def test_the_store_keeps_what_was_used_last_within_its_bytes() -> None:
    size = 1000
    store = AnswerStore(5 * (size + ENTRY_OVERHEAD_BYTES))
    for number in range(5):
        store.put(b"%d" % number, bytes([number]) * size)
    assert store.get(b"0") == bytes([0]) * size
    store.put(b"5", bytes([5]) * size)
    assert store.get(b"1") is None
    assert [store.get(b"%d" % n) is not None for n in (0, 2, 3, 4, 5)] == [True] * 5
    store.put(b"0", b"new")
    assert store.get(b"0") == b"new"
    assert store.num_bytes == 4 * size + len(b"new") + 5 * ENTRY_OVERHEAD_BYTES


def test_an_answer_that_would_fill_the_store_is_not_kept() -> None:
    store = AnswerStore(1000)
    store.put(b"big", bytes(1000))
    assert store.get(b"big") is None
    assert store.num_bytes == 0


@pytest.mark.parametrize("request_id", ["", "x", "y" * 200])
def test_an_answer_gets_another_id_without_being_parsed(request_id: str) -> None:
    answer = pb.ModelInferResponse(model_name="m", id="old", raw_output_contents=[b"123"])
    given = pb.ModelInferResponse.FromString(with_id(answer.SerializeToString(), request_id))
    assert given.id == request_id
    assert (given.model_name, given.raw_output_contents) == ("m", [b"123"])


async def test_an_answer_of_another_version_is_not_kept_under_the_one_that_was_meant(
    cached_fleet: "Fleet", inputs: Inputs, new_model: NewModel
) -> None:
    cached_fleet.add_model(cached(new_model("echo", 2)))
    second = await cached_fleet.add_replica("r2", version=2)
    await cached_fleet.until_ready("r1", "r2", "p1")

    async def leave(frame: Any) -> bytes:
        from services.contracts.errors import NotReadyError

        # It drains, and the table says so before the request is sent again.
        report = cached_fleet.report_of("r2")
        cached_fleet.controller.snapshot.replicas.remove(report)
        await cached_fleet.until_ready("r1", "p1")
        raise NotReadyError("draining")

    second.answer = leave
    client = await cached_fleet.client()
    result = await client.infer("echo", inputs(5.0))
    assert result.get_response().model_version == "1"
    second.answer = None
    third = await cached_fleet.add_replica("r3", version=2)
    await cached_fleet.until_ready("r1", "r3", "p1")
    result = await client.infer("echo", inputs(5.0))
    assert result.get_response().model_version == "2"
    assert third.num_requests == 1
