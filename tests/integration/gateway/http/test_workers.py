"""The HTTP port of a gateway process with two workers: both serve it, and it drains with them."""

import asyncio
import json
import signal
import urllib.request
from typing import TYPE_CHECKING

import numpy as np

from tests.integration.gateway.workers.worker_gateway import COUNTED, running_gateway

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Fleet

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


async def test_both_workers_serve_the_port(echo_fleet: "Fleet") -> None:
    async with running_gateway(echo_fleet, http_port=0) as gateway:
        url = f"http://127.0.0.1:{gateway.facts['http_port']}/v2/models/echo/infer"

        def ask() -> list[float]:
            body = json.dumps({"inputs": [TENSOR]}).encode()
            with urllib.request.urlopen(url, body, timeout=30) as answer:
                return list(json.load(answer)["outputs"][0]["data"])

        # Each on a connection of its own, which the kernel gives to one of them.
        answers = await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(40)))
        np.testing.assert_array_equal(answers, [[1, 2, 3, 4]] * 40)
        await gateway.until_scraped(COUNTED % 0, COUNTED % 1)
        gateway.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(gateway.process.wait(), 30) == 0
