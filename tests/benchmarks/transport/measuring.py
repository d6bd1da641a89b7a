"""One cell, measured through the load client: a process that takes an order and then a start."""

import json
import subprocess
from collections.abc import Callable, Mapping

from .report import Cell, Sample


def measured(
    client: "subprocess.Popen[str]",
    target: object,
    cell: Cell,
    seconds: float,
    cpu_s: Callable[[], Mapping[str, float]],
) -> Sample:
    """Warm the cell up, then measure it.

    Args:
        client: the load client.
        target: where it sends, in its own words.
        cell: payload and concurrency.
        seconds: how long.
        cpu_s: seconds of CPU that each role has taken so far.
    """
    order = {
        "target": target,
        "payload": cell.payload,
        "concurrency": cell.concurrency,
        "seconds": seconds,
    }
    say(client, json.dumps(order))
    before = cpu_s()
    result = json.loads(say(client, "measure"))
    after = cpu_s()
    cpu_us = {role: (after[role] - before[role]) * 1e6 / result["count"] for role in after}
    return Sample(
        rps=result["rps"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        gateway_us=cpu_us.get("gateway", 0.0),
        replica_us=cpu_us["replica"],
    )


def say(client: "subprocess.Popen[str]", line: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    print(line, file=client.stdin, flush=True)
    reply = client.stdout.readline()
    if not reply:
        raise SystemExit("the client ended; its error is above")
    return reply
