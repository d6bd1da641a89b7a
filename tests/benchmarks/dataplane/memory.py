"""Requests of 10 MB: how long they take beside plain grpc.aio, and what memory they hold.

    python -m tests.benchmarks.dataplane.memory [--rounds 5] [--seconds 2] [--write FILE.md]

Memory is the resident one of all server processes together, looked at every few milliseconds. A
request's share is the difference of the peaks with many and with one in flight, by the number
between: what a process keeps for itself drops out.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.benchmarks.dataplane.__main__ import versions
from tests.benchmarks.dataplane.launch import start
from tests.benchmarks.dataplane.payloads import HUGE, request_of
from tests.benchmarks.dataplane.servers import Servers, smelt, started
from tests.benchmarks.transport.measuring import say

PLAIN, SMELT = "plain grpc.aio", "Smelt"
CONCURRENCIES = (1, 4, 8)
# With so many in flight; the first comes first, as processes keep what they have freed.
MEMORY_CONCURRENCIES = (1, 16)
_LOOK_EVERY_S = 0.004
_MIB = 1 << 20


class Peak:
    """The largest memory of some processes while it is looked at."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self.num_bytes = 0

    def look(self) -> None:
        """Look once."""
        found = sum(process.memory_info().rss for process in self._processes)
        self.num_bytes = max(self.num_bytes, found)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look until the block ends."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(_LOOK_EVERY_S):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.look()


def load(
    client: "subprocess.Popen[str]", servers: Servers, concurrency: int, seconds: float
) -> tuple[float, int]:
    """Median latency in milliseconds, and peak memory in bytes, of one load."""
    order = {"payload": HUGE, "target": servers.target, "concurrency": concurrency}
    peak = Peak([pid for pids in servers.pids[HUGE].values() for pid in pids])
    with peak.watched():
        say(client, json.dumps(order | {"seconds": seconds}))
        result = json.loads(say(client, "measure"))
    return float(result["p50_ms"]), peak.num_bytes


def run(rounds: int, seconds: float) -> tuple[dict[str, float], dict[tuple[str, int], list[float]]]:
    """Memory per request in requests' sizes, and latencies by server and concurrency."""
    size = len(request_of(HUGE))
    shares: dict[str, float] = {}
    latencies: dict[tuple[str, int], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        started("plain", {}) as plain,
        smelt(Path(folder), (HUGE,)) as own,
    ):
        client, both = start("client"), {PLAIN: plain, SMELT: own}
        try:
            few, many = MEMORY_CONCURRENCIES
            for name, servers in both.items():
                # Twice: the first requests ever fill tables that stay.
                low = [load(client, servers, few, seconds)[1] for _ in range(2)][-1]
                high = load(client, servers, many, seconds)[1]
                shares[name] = (high - low) / (many - few) / size
            for number in range(rounds):
                _round(client, both, seconds, latencies)
                print(f"round {number + 1} of {rounds} done", flush=True)
        finally:
            client.kill()
            client.wait()
    return shares, latencies


def _round(
    client: "subprocess.Popen[str]",
    both: Mapping[str, Servers],
    seconds: float,
    latencies: dict[tuple[str, int], list[float]],
) -> None:
    for concurrency in CONCURRENCIES:
        for name, servers in both.items():
            p50_ms, _ = load(client, servers, concurrency, seconds)
            latencies.setdefault((name, concurrency), []).append(p50_ms)


def report(shares: Mapping[str, float], latencies: Mapping[tuple[str, int], list[float]]) -> str:
    """Both tables."""
    lines = ["| in flight | plain p50 ms | Smelt p50 ms | ratio |", "|---:|---:|---:|---:|"]
    for concurrency in CONCURRENCIES:
        plain, own = latencies[PLAIN, concurrency], latencies[SMELT, concurrency]
        ratio = statistics.median(a / b for a, b in zip(own, plain, strict=True))
        middles = statistics.median(plain), statistics.median(own)
        lines.append(f"| {concurrency} | {middles[0]:.1f} | {middles[1]:.1f} | {ratio:.2f} |")
    lines += ["", "| server | memory per request in flight, in its size |", "|---|---:|"]
    lines += [f"| {name} | {share:.2f} |" for name, share in shares.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    shares, latencies = run(arguments.rounds, arguments.seconds)
    size = len(request_of(HUGE)) / _MIB
    text = f"{versions()}; requests of {size:.1f} MiB; {arguments.rounds} rounds of "
    text += f"{arguments.seconds:g} s.\n\n{report(shares, latencies)}"
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
