"""Triton's metrics of several gateways in front of the same replicas."""

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
from prometheus_client import CollectorRegistry

from services.gateway.triton_metrics import TritonMetrics
from tests.integration.gateway.answers import Inputs

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet


async def test_tritons_metrics_of_two_gateways_add_up_at_once(
    echo_fleet: "Fleet", inputs: Inputs
) -> None:
    pages, clients = [], []
    for _ in range(2):
        await echo_fleet.start_gateway(triton_metrics=True)
        await echo_fleet.until_ready("r1", "r2")
        pages.append(CollectorRegistry())
        pages[-1].register(cast("TritonMetrics", echo_fleet.gateway.triton_metrics))
        clients.append(await echo_fleet.client())

    async def scraped(name: str) -> list[float | None]:
        """As Prometheus reads it: from another thread, which has the replicas asked."""
        labels = {"model": "echo", "version": "1"}
        name = f"nv_inference_{name}"
        return [await asyncio.to_thread(page.get_sample_value, name, labels) for page in pages]

    assert await scraped("exec_count") == [0, 0]
    for client, num in zip(clients, (5, 2), strict=True):
        for _ in range(num):
            await client.infer("echo", inputs(rows=3))
    assert await scraped("request_success") == [5, 2]
    assert await scraped("exec_count") == [5, 2]
    (stats,) = (await clients[0].get_inference_statistics("echo")).model_stats
    # One source: what ModelStatistics says, shared among the gateways.
    for name, counted in (
        ("request", stats.inference_stats.success),
        ("compute_infer", stats.inference_stats.compute_infer),
        ("queue", stats.inference_stats.queue),
    ):
        took = await scraped(f"{name}_duration_us")
        assert sum(each or 0 for each in took) == counted.ns / 1000 == 7
    assert sum(each or 0 for each in await scraped("count")) == stats.inference_count


async def test_nothing_is_kept_of_a_version_that_is_gone_for_long(
    echo_fleet: "Fleet", inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.observability.fleet_observer.SAMPLE_EVERY_S", 0.01)
    await echo_fleet.start_gateway(triton_metrics=True)
    await echo_fleet.until_ready("r1", "r2")
    page = CollectorRegistry()
    page.register(cast("TritonMetrics", echo_fleet.gateway.triton_metrics))
    await (await echo_fleet.client()).infer("echo", inputs())
    labels = {"model": "echo", "version": "1"}
    await echo_fleet.until_metric(1, "smelt_requests_total", **labels, code="OK")
    await echo_fleet.until_metric(0, "smelt_requests_in_flight", **labels)
    monkeypatch.setattr("services.gateway.routing.gone_versions.KEEP_S", 0.0)
    del echo_fleet.controller.snapshot.models[:]
    del echo_fleet.controller.snapshot.replicas[:]
    echo_fleet.controller.publish()
    recorded = echo_fleet.recorder.recorded
    async with asyncio.timeout(30):
        while echo_fleet.metric("smelt_requests_total", **labels, code="OK") is not None:
            recorded.clear()
            await recorded.wait()
    # A gauge that is set at intervals would be there again.
    for _ in range(5):
        recorded.clear()
        await recorded.wait()
    assert echo_fleet.metric("smelt_requests_in_flight", **labels) is None
    count = page.get_sample_value
    assert await asyncio.to_thread(count, "nv_inference_request_success", labels) is None
