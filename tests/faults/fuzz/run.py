"""A whole run of the fuzzer: both ports, memory, and whatever an event loop complains of."""

import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.faults.fuzz.frames import fuzz_data_port, fuzz_gateway_end
from tests.faults.fuzz.requests import Findings, fuzz_requests
from tests.faults.fuzz.world import world

# One connection to the data port for so many requests, and one wrong replica for so many.
_REQUESTS_OF_A_CONNECTION = 10
_REQUESTS_OF_A_REPLICA = 40
_WARM_UP_REQUESTS = 500


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of it.

    Attributes:
        grown_bytes: resident memory of this process, which has all parts in it, above that
            after the warm-up.
    """

    answers: Counter[tuple[str, str]]
    faults: list[str]
    grown_bytes: int
    warm_bytes: int
    duration_s: float


async def fuzz(count: int, seed: int = 0) -> Run:
    """Send `count` hostile requests, and a tenth as many hostile connections."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as here:
            warm = await fuzz_requests(here.channel, range(-_WARM_UP_REQUESTS, 0))
            before, began_s = _resident_bytes(), time.monotonic()
            found = [warm, await fuzz_requests(here.channel, range(seed, seed + count))]
            connections = range(seed, seed + count // _REQUESTS_OF_A_CONNECTION)
            found.append(await fuzz_data_port(here.data_port, here.replica.token, connections))
            replicas = range(seed, seed + count // _REQUESTS_OF_A_REPLICA)
            found.append(await fuzz_gateway_end(replicas))
            # The port that took all that still serves.
            found.append(await fuzz_requests(here.channel, range(1)))
            return Run(
                answers=sum((part.answers for part in found[1:]), Counter()),
                faults=_faults(found, complaints),
                grown_bytes=_resident_bytes() - before,
                warm_bytes=before,
                duration_s=time.monotonic() - began_s,
            )


def _faults(found: list[Findings], complaints: list[dict[str, Any]]) -> list[str]:
    told = [f"event loop: {c.get('message')}: {c.get('exception')!r}" for c in complaints]
    return [fault for part in found for fault in part.faults] + told


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
