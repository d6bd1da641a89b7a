"""Measures transports between gateway and replica and prints a table.

    python -m tests.benchmarks.transport [--rounds 5] [--seconds 2] [--only WORD] [--write FILE.md]

Every round visits every cell (variant, payload, concurrency) once, in a new order, so that a
busy minute of the machine hits all variants alike; the table shows medians over rounds.
"""

import argparse
import random
import tempfile
from pathlib import Path

from . import fleet
from .measuring import measured
from .report import FLOOR, Cell, Sample, markdown


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
                    at = servers[cell.variant]
                    samples[cell].append(measured(client, at.target, cell, seconds, at.cpu_s))
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
