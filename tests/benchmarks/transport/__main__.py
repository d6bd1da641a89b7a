"""Measures transports between gateway and replica and prints a table.

    python -m tests.benchmarks.transport [--rounds 5] [--seconds 2] [--only WORD] [--write FILE.md]

Every round visits every cell (variant, payload, concurrency) once, in a new order, so that a
busy minute of the machine hits all variants alike; the table shows medians over rounds.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

from . import fleet
from .report import FLOOR, Cell, Sample, markdown


def _say(client: "subprocess.Popen[str]", line: str) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    print(line, file=client.stdin, flush=True)
    return client.stdout.readline()


def _measure(
    client: "subprocess.Popen[str]", servers: fleet.Servers, cell: Cell, seconds: float
) -> Sample:
    """Warms the cell up, then measures it."""
    order = {
        "target": servers.target,
        "payload": cell.payload,
        "concurrency": cell.concurrency,
        "seconds": seconds,
    }
    _say(client, json.dumps(order))
    before = servers.cpu_s()
    result = json.loads(_say(client, "measure"))
    after = servers.cpu_s()
    cpu_us = {name: (after[name] - before[name]) * 1e6 / result["count"] for name in after}
    return Sample(
        rps=result["rps"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        gateway_us=cpu_us.get("gateway", 0.0),
        replica_us=cpu_us["replica"],
    )


def run(variants: list[fleet.Variant], rounds: int, seconds: float) -> dict[Cell, list[Sample]]:
    """Starts the variants, then visits all cells once a round."""
    cells = [
        Cell(variant=variant.name, payload=payload, concurrency=concurrency)
        for variant in variants
        for payload in ("tok", "big")
        for concurrency in (1, 32, 128)
    ]
    samples: dict[Cell, list[Sample]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        servers = {v.name: fleet.start_servers(v, Path(folder)) for v in variants}
        client = fleet.start("client")
        try:
            for number in range(rounds):
                for cell in random.sample(cells, len(cells)):
                    samples[cell].append(_measure(client, servers[cell.variant], cell, seconds))
                print(f"round {number + 1} of {rounds} done", flush=True)
        finally:
            client.kill()
            client.wait()
            for each in servers.values():
                each.stop()
    return samples


def main() -> None:
    """Reads the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a cell, without its warm-up")
    parser.add_argument("--only", default="", help="of the variants, those with this in the name")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    chosen = [v for v in fleet.VARIANTS if v.name == FLOOR or arguments.only in v.name]
    text = markdown(run(chosen, arguments.rounds, arguments.seconds))
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
