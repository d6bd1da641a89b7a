"""Triton's metrics of several gateways in front of the same replicas."""

import asyncio
from typing import TYPE_CHECKING, cast

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
