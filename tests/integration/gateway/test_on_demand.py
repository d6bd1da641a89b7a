"""On-demand models without a replica: a request has the controller load one, and waits for it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from services.contracts.model.manifest import ModelVersion
from services.contracts.model.recipe import Residency
from services.pb import open_inference_v2_pb2 as pb
from tests.integration.gateway.answers import Inputs, who

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

STANDBY = "on demand: not loaded; its next request loads it"


def on_demand(model: ModelVersion) -> ModelVersion:
    """The same with that recipe."""
    recipe = model.recipe.model_copy(update={"residency": Residency.ON_DEMAND})
    return model.model_copy(update={"recipe": recipe})


@pytest.fixture
async def client(fleet_of: "Fleet", new_model: Callable[..., Any]) -> InferenceServerClient:
    """Of a gateway whose only model is on demand and not loaded."""
    fleet_of.add_model(on_demand(new_model()), STANDBY)
    fleet_of.controller.snapshot.models[0].state = "STANDBY"
    fleet_of.controller.publish()
    await fleet_of.until(lambda: "echo" in fleet_of.gateway.endpoints.table.view.models)
    return await fleet_of.client()


async def _asked(fleet_of: "Fleet") -> dict[str, float]:
    """The next report of uses."""
    async with asyncio.timeout(30):
        return await fleet_of.controller.uses.get()


async def _message_of(asked: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        await asked
    return str(caught.value.status()).removeprefix("StatusCode."), caught.value.message()


async def test_requests_wait_for_one_load_and_all_are_answered(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    """One message for them all; each request after that is a use, and none is sent without any."""
    asked = [asyncio.ensure_future(client.infer("echo", inputs())) for _ in range(8)]
    assert await _asked(fleet_of) == {"echo": 0.0}
    await fleet_of.until_metric(8, "smelt_requests_held", model="echo", version="1")
    await fleet_of.add_replica("r1")
    await fleet_of.until_ready("r1")
    assert {who(result) for result in await asyncio.gather(*asked)} == {"r1"}
    misses = fleet_of.metric("smelt_on_demand_misses_total", model="echo", version="1")
    assert misses == 8.0
    assert fleet_of.controller.uses.qsize() <= 1
    await _silence(fleet_of)
    await client.infer("echo", inputs())
    assert 0.0 <= (await _asked(fleet_of))["echo"] < 5.0
    assert fleet_of.metric("smelt_on_demand_misses_total", model="echo", version="1") == 8.0


async def _silence(fleet_of: "Fleet") -> None:
    """Return once a look found nothing to report."""
    uses = fleet_of.controller.uses
    while True:
        try:
            async with asyncio.timeout(1.1):
                await uses.get()
        except TimeoutError:
            return


async def test_readiness_is_yes_before_the_first_request(
    fleet_of: "Fleet", client: InferenceServerClient
) -> None:
    """Else a client that checks first would never send the request that loads it."""
    assert await client.is_server_ready()
    assert await client.is_model_ready("echo")
    assert await client.is_model_ready("echo", "1")
    assert not await client.is_model_ready("echo", "2")
    (entry,) = (await client.get_model_repository_index()).models
    assert (entry.state, entry.reason) == ("READY", STANDBY)
    model = fleet_of.controller.snapshot.models[0]
    model.state, model.reason = "UNAVAILABLE", "its weights are broken"
    fleet_of.controller.publish()
    await fleet_of.until(lambda: not fleet_of.gateway.endpoints.table.would_answer("echo", ""))
    assert not await client.is_model_ready("echo")


@pytest.mark.parametrize("state", ["LOADING", "UNLOADING"])
async def test_one_that_loads_or_leaves_is_waited_for_as_well(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs, state: str
) -> None:
    fleet_of.controller.snapshot.models[0].state = state
    fleet_of.controller.publish()
    asked = asyncio.ensure_future(client.infer("echo", inputs()))
    assert "echo" in await _asked(fleet_of)
    await fleet_of.add_replica("r1")
    await fleet_of.until_ready("r1")
    assert who(await asked) == "r1"


async def test_a_deadline_that_is_shorter_than_the_load_is_kept(
    fleet_of: "Fleet", client: InferenceServerClient
) -> None:
    request = pb.ModelInferRequest(model_name="echo").SerializeToString()
    assert await fleet_of.status_in("200m", request) == 4  # DEADLINE_EXCEEDED
    expired = {"model": "echo", "version": "1", "outcome": "expired"}
    assert fleet_of.metric("smelt_request_held_duration_seconds_count", **expired) == 1.0


async def test_a_wait_that_ends_says_what_it_waited_for(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    model = fleet_of.controller.snapshot.models[0]
    asked = asyncio.ensure_future(client.infer("echo", inputs(), client_timeout=30.0))
    await _asked(fleet_of)
    model.state, model.reason = "LOADING", "replicas are starting"
    fleet_of.controller.publish()
    await fleet_of.start_gateway(hold_s=0.3)
    client = await fleet_of.client()
    await fleet_of.until(lambda: "echo" in fleet_of.gateway.endpoints.table.view.models)
    code, message = await _message_of(client.infer("echo", inputs()))
    assert code == "UNAVAILABLE"
    assert message.startswith(
        "model 'echo' has no ready replica: replicas are starting; the request waited 0.3 s for one"
    )
    asked.cancel()


async def test_what_is_beyond_the_bounds_of_what_waits_is_refused_at_once(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    await fleet_of.start_gateway(max_in_flight=4)
    client = await fleet_of.client()
    await fleet_of.until(lambda: "echo" in fleet_of.gateway.endpoints.table.view.models)
    asked = [asyncio.ensure_future(client.infer("echo", inputs())) for _ in range(2)]
    await fleet_of.until_metric(2, "smelt_requests_held", model="echo", version="1")
    code, message = await _message_of(client.infer("echo", inputs()))
    assert (code, "its bounds are 2 and" in message) == ("UNAVAILABLE", True)
    await fleet_of.add_replica("r1")
    await fleet_of.until_ready("r1")
    assert [who(result) for result in await asyncio.gather(*asked)] == ["r1", "r1"]


async def test_a_load_that_fails_answers_with_its_reason(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    asked = asyncio.ensure_future(client.infer("echo", inputs()))
    await _asked(fleet_of)
    model = fleet_of.controller.snapshot.models[0]
    model.state, model.reason = "UNAVAILABLE", "its weights are broken"
    fleet_of.controller.publish()
    code, message = await _message_of(asked)
    assert (code, "its weights are broken" in message) == ("UNAVAILABLE", True)


async def test_without_the_controller_the_hold_ends_with_an_honest_error(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    await fleet_of.start_gateway(hold_s=1.2)
    await fleet_of.until(lambda: "echo" in fleet_of.gateway.endpoints.table.view.models)
    client = await fleet_of.client()
    await fleet_of.controller.stop()
    code, message = await _message_of(client.infer("echo", inputs()))
    assert code == "UNAVAILABLE"
    assert "the controller, which loads it, is unreachable: UNAVAILABLE" in message


async def test_it_is_asked_for_again_while_requests_wait(
    fleet_of: "Fleet", client: InferenceServerClient, inputs: Inputs
) -> None:
    """As a controller that starts again knows nothing of them."""
    asked = asyncio.ensure_future(client.infer("echo", inputs()))
    await _asked(fleet_of)
    await fleet_of.controller.stop()
    while not fleet_of.controller.uses.empty():
        fleet_of.controller.uses.get_nowait()
    await fleet_of.controller.start()
    assert await _asked(fleet_of) == {"echo": 0.0}
    await fleet_of.add_replica("r1")
    await fleet_of.until_ready("r1")
    assert who(await asked) == "r1"


async def test_unloaded_and_pinned_models_are_not_asked_for(
    fleet_of: "Fleet",
    client: InferenceServerClient,
    inputs: Inputs,
    new_model: Callable[..., Any],
) -> None:
    fleet_of.controller.snapshot.models[0].is_unloaded = True
    fleet_of.add_model(new_model("pinned"), "starting")
    fleet_of.controller.publish()
    await fleet_of.until(lambda: "pinned" in fleet_of.gateway.endpoints.table.view.models)
    for name in ("echo", "pinned"):
        assert (await _message_of(client.infer(name, inputs())))[0] == "UNAVAILABLE"
        assert not await client.is_model_ready(name)
    assert fleet_of.controller.uses.empty()
