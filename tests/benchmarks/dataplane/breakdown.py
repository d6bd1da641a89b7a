"""Where a request's processor time goes: client, gateway and replica beside gRPC alone.

    python -m tests.benchmarks.dataplane.breakdown [--rounds 5] [--seconds 1] [--real-time]
                                                   [--write FILE.md]

Three servers run at once, and are asked as `python -m tests.benchmarks.dataplane` asks them:

- the floor, which parses a request with protobuf and answers it;
- bare gRPC: the same server, whose handler returns a constant. That is what grpc.aio itself costs
  whoever takes requests by it, and what the gateway's own server is to be compared with;
- a fleet by `smelt up`.

The ideal is what processor time alone allows, whatever else the machine does: the rate at which all
processes together keep every core busy, or the dearest of them keeps one busy, by the same of the
floor. One small request is never at two places, so there the sum counts.

With `--real-time` the measured processes go before all others of the machine while a cell runs
(SCHED_RR; it takes root), and as long after it everybody else has the cores.
"""

import argparse
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.benchmarks.dataplane.__main__ import CONCURRENCIES, versions
from tests.benchmarks.dataplane.alone import alone
from tests.benchmarks.dataplane.launch import start
from tests.benchmarks.dataplane.payloads import PAYLOADS
from tests.benchmarks.dataplane.servers import Servers, smelt, started
from tests.benchmarks.dataplane.stations import stations_table
from tests.benchmarks.dataplane.tables import Load, cell_of
from tests.benchmarks.transport.measuring import measured
from tests.benchmarks.transport.report import Sample, ratio

FLOOR, BARE, SMELT = "floor", "bare gRPC", "Smelt"
_COLUMNS = (
    "payload",
    "concurrency",
    "client us",
    "floor us",
    "bare gRPC us",
    "gateway us",
    "replica us",
    "server CPU / floor",
    "RPS / floor",
    "ideal",
)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One measurement, and microseconds of the client's processor time for a request."""

    sample: Sample
    client_us: float


def _measure(client: "subprocess.Popen[str]", servers: Servers, load: Load, seconds: float) -> Cost:
    at_s: list[tuple[float, float]] = []

    def cpu_s() -> dict[str, float]:
        by_role = servers.cpu_s(load[0])
        times = psutil.Process(client.pid).cpu_times()
        at_s.append((times.user + times.system, sum(by_role.values())))
        return by_role

    sample = measured(client, servers.target, cell_of("", *load), seconds, cpu_s)
    (client_from_s, servers_from_s), (client_to_s, servers_to_s) = at_s
    share = (client_to_s - client_from_s) / (servers_to_s - servers_from_s)
    return Cost(sample=sample, client_us=sample.server_us * share)


@contextmanager
def _servers() -> Iterator[dict[str, Servers]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        started("plain", {}) as floor,
        started("bare", {}) as bare,
        smelt(Path(folder)) as fleet,
    ):
        yield {FLOOR: floor, BARE: bare, SMELT: fleet}


def run(
    rounds: int, seconds: float, loads: Sequence[Load], *, is_real_time: bool = False
) -> dict[tuple[Load, str], list[Cost]]:
    """Starts everything, then visits all loads and servers once a round, in a new order."""
    costs: dict[tuple[Load, str], list[Cost]] = {}
    with _servers() as servers:
        client = start("client")
        try:
            for _ in range(rounds):
                for load in random.sample(loads, len(loads)):
                    for name in random.sample(list(servers), len(servers)):
                        at = servers[name]
                        with alone(at, load[0], client.pid, seconds, is_real_time=is_real_time):
                            cost = _measure(client, at, load, seconds)
                        costs.setdefault((load, name), []).append(cost)
        finally:
            client.kill()
            client.wait()
    return costs


def table(costs: Mapping[tuple[Load, str], Sequence[Cost]], loads: Sequence[Load]) -> str:
    """Medians of each load, and the ideals that follow."""
    lines = [
        f"| {' | '.join(_COLUMNS)} |",
        f"|---|{'---:|' * (len(_COLUMNS) - 1)}",
    ]
    for load in loads:
        floor, bare, ours = (costs[load, name] for name in (FLOOR, BARE, SMELT))
        client_us, floors_client_us = (
            statistics.median(c.client_us for c in costs_of) for costs_of in (ours, floor)
        )
        samples, floors = [c.sample for c in ours], [c.sample for c in floor]
        gateway_us, replica_us, floor_us, bare_us = (
            statistics.median(values)
            for values in (
                [s.gateway_us for s in samples],
                [s.replica_us for s in samples],
                [s.replica_us for s in floors],
                [c.sample.replica_us for c in bare],
            )
        )
        ideal_floor = _ideal_rps(load, floors_client_us, floor_us)
        figures = (client_us, floor_us, bare_us, gateway_us, replica_us)
        ratios = (
            ratio(samples, floors, "server_us"),
            ratio(samples, floors, "rps"),
            _ideal_rps(load, client_us, gateway_us, replica_us) / ideal_floor,
        )
        cells = [load[0], str(load[1]), *(f"{each:.0f}" for each in figures)]
        lines.append(f"| {' | '.join([*cells, *(f'{each:.2f}' for each in ratios)])} |")
    return "\n".join(lines) + "\n"


def _ideal_rps(load: Load, *processes_us: float) -> float:
    if load[1] == 1:
        return 1e6 / sum(processes_us)
    num_cores = os.cpu_count() or 1
    return 1e6 / max(sum(processes_us) / num_cores, *processes_us)


def main() -> None:
    """Reads the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="a cell, without its warm-up")
    parser.add_argument("--real-time", action="store_true", help="let nobody else run meanwhile")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    loads = [(payload, num) for payload in PAYLOADS for num in CONCURRENCIES]
    costs = run(arguments.rounds, arguments.seconds, loads, is_real_time=arguments.real_time)
    text = (
        f"{versions()}; medians of {arguments.rounds} rounds of {arguments.seconds:g} s on "
        f"{os.cpu_count()} cores.\n\n{table(costs, loads)}\n{stations_table()}"
    )
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
