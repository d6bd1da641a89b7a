"""Measures the whole data plane beside its floor and beside Ray Serve's own gRPC proxy.

    python -m tests.benchmarks.dataplane [--rounds 5] [--seconds 2] [--write FILE.md]

All servers run at once. Every round visits every cell (server, payload, concurrency) once,
in a new order, so that a busy minute of the machine hits all alike; tables show medians.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

from tests.benchmarks.dataplane.payloads import PAYLOADS
from tests.benchmarks.dataplane.servers import (
    SERVE_DEFAULT,
    SERVE_FAST,
    SMELT,
    Servers,
    all_servers,
    start,
)
from tests.benchmarks.transport.report import FLOOR, Cell, Sample, _ratio, markdown

CONCURRENCIES = (1, 32, 128)
Samples = dict[Cell, list[Sample]]


def _say(client: "subprocess.Popen[str]", line: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    print(line, file=client.stdin, flush=True)
    reply = client.stdout.readline()
    if not reply:
        raise SystemExit("the client ended; its error is above")
    return reply


def _measure(
    client: "subprocess.Popen[str]", servers: Servers, cell: Cell, seconds: float
) -> Sample:
    """Warms the cell up, then measures it."""
    order = {
        "target": servers.target,
        "payload": cell.payload,
        "concurrency": cell.concurrency,
        "seconds": seconds,
    }
    _say(client, json.dumps(order))
    before = servers.cpu_s(cell.payload)
    result = json.loads(_say(client, "measure"))
    after = servers.cpu_s(cell.payload)
    cpu_us = {role: (after[role] - before[role]) * 1e6 / result["count"] for role in after}
    return Sample(
        rps=result["rps"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        gateway_us=cpu_us.get("gateway", 0.0),
        replica_us=cpu_us["replica"],
    )


def run(rounds: int, seconds: float) -> Samples:
    """Starts everything, then visits all cells once a round."""
    with all_servers() as servers:
        cells = [
            Cell(variant=variant, payload=payload, concurrency=concurrency)
            for variant in servers
            for payload in PAYLOADS
            for concurrency in CONCURRENCIES
        ]
        samples: Samples = {cell: [] for cell in cells}
        client = start("client")
        try:
            for number in range(rounds):
                for cell in random.sample(cells, len(cells)):
                    samples[cell].append(_measure(client, servers[cell.variant], cell, seconds))
                print(f"round {number + 1} of {rounds} done", flush=True)
        finally:
            client.kill()
            client.wait()
    return samples


def summary(samples: Samples) -> str:
    """Smelt against each of the others: medians of ratios within a round."""
    others = ("grpc.aio", "Serve proxy", "Serve fast")
    headings = [f"{figure} / {other}" for figure in ("RPS", "CPU") for other in others]
    lines = [
        f"| payload | concurrency | {' | '.join(headings)} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for payload in PAYLOADS:
        for concurrency in CONCURRENCIES:
            own = samples[Cell(variant=SMELT, payload=payload, concurrency=concurrency)]
            ratios = [
                _ratio(own, samples[Cell(variant=v, payload=payload, concurrency=concurrency)], f)
                for f in ("rps", "server_us")
                for v in (FLOOR, SERVE_DEFAULT, SERVE_FAST)
            ]
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"| {payload} | {concurrency} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a cell, without its warm-up")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    samples = run(arguments.rounds, arguments.seconds)
    text = f"## Smelt against the others\n\n{summary(samples)}\n## All figures\n\n"
    text += markdown(samples)
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
