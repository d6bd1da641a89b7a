"""What a polite client's requests take while another client attacks the same server.

    python -m tests.benchmarks.floods [--before TREE] [--rounds 3] [--seconds 4] [--write FILE.md]

The polite client has a connection of its own and asks 100 times a second. The attacking one is a
process of its own, with one connection (`attacks.py`) or many (`crowds.py`); one that is ended is
made anew a second later, as a load balancer would let it. With `--before` the same is asked of
another tree's server (`git worktree add TREE REVISION`), in turn: a busy machine then hits both
alike. Tables show the median of rounds.

An attack is within the figure if the polite client's p50 is at most 25 ms and its p99 at most
100 ms, or if GOAWAY ended the first attacking connection within a second. One more figure is the
memory that idle connections keep which have sent hostile headers: 100 MB for 1,000 of them, of
each kind.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

import grpc

from tests.benchmarks.floods.attacks import ATTACKS, NOTHING
from tests.benchmarks.floods.crowds import CROWDS
from tests.benchmarks.floods.serving import Served, open_more_files, served
from tests.integration.grpc_server.hostile_headers import HOSTILE, Hostile, hostile_connections

EVERY_S = 0.01
_PATIENCE_S = 8.0
# The figure.
_P50_MS, _P99_MS, _ENDED_S = 25, 100, 1.0
_NUM_IDLE, _IDLE_MB = 1000, 100
COLUMNS = ("p50 ms", "p99 ms", "ended", "memory MB", "verdict")


class Seen(NamedTuple):
    """Of one attack, or the median of several.

    Attributes:
        p50_ms, p99_ms: of the polite client's requests.
        memory_mb: the most that the server's memory grew.
        ended_s: when the first attacking connection was ended; infinite if it never was.
        goaway: the code of GOAWAY; "none" where the connection was closed without.
    """

    p50_ms: float
    p99_ms: float
    memory_mb: float
    ended_s: float = inf
    goaway: str = "none"

    @property
    def is_within(self) -> bool:
        """The figure."""
        is_polite = self.p50_ms <= _P50_MS and self.p99_ms <= _P99_MS
        return is_polite or (self.goaway != "none" and self.ended_s <= _ENDED_S)

    def __str__(self) -> str:
        how = "closed" if self.goaway == "none" else f"GOAWAY {self.goaway}"
        ended = "never" if self.ended_s == inf else f"{how}, {self.ended_s:.1f} s"
        cells = (f"{self.p50_ms:.1f}", f"{self.p99_ms:.1f}", ended, f"{self.memory_mb:.0f}")
        return " | ".join((*cells, _verdict(is_within=self.is_within)))


def _verdict(*, is_within: bool) -> str:
    return "pass" if is_within else "FAIL"


@contextmanager
def attacked(server: Served, attack: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that attacks that server."""
    module = "tests.benchmarks.floods.attacker"
    command = [sys.executable, "-m", module, str(server.port), str(server.tls_port), attack]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        try:
            yield attacker
        finally:
            attacker.kill()


def polite(port: int, seconds: float) -> list[float]:
    """Seconds that each request took, from when it was due."""
    took: list[float] = []
    lock = threading.Lock()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/test.Probe/Echo")
        with suppress(grpc.RpcError):
            # It finds the server busy already where that is flooded.
            ask(b"first", wait_for_ready=True, timeout=_PATIENCE_S)
        calls = []
        begin_s = time.monotonic()
        for number in range(int(seconds / EVERY_S)):
            due_s = begin_s + number * EVERY_S
            # Not a wait for an event: the polite client's pace.
            time.sleep(max(due_s - time.monotonic(), 0))

            def note(_: object, due_s: float = due_s) -> None:
                with lock:
                    took.append(time.monotonic() - due_s)

            call = ask.future(bytes(2048), timeout=_PATIENCE_S)
            call.add_done_callback(note)
            calls.append(call)
        for call in calls:
            # One that was not answered in time took as long as that.
            call.exception(timeout=60)
    return took


def seen(tree: Path, attack: str, seconds: float) -> Seen:
    """One attack on a new server."""
    with served(tree) as server:
        polite(server.port, 0.3)
        before_mb = server.resident_mb
        server.forget_peak()
        if attack == NOTHING:
            return _seen(polite(server.port, seconds), server.peak_mb - before_mb)
        with attacked(server, attack) as attacker:
            assert attacker.stdout is not None
            # Its imports take a while; the polite client shall see all of the attack.
            assert attacker.stdout.readline(), f"the attacker ended: {attacker.wait()}"
            took = polite(server.port, seconds)
            if attack in CROWDS:
                # Now it may still be gathering.
                attacker.stdout.readline()
                took += polite(server.port, seconds)
            attacker.kill()
            ended = attacker.stdout.readline().split()
        return _seen(took, server.peak_mb - before_mb, *ended)


def _seen(took: list[float], memory_mb: float, ended_s: str = "inf", goaway: str = "none") -> Seen:
    took.sort()
    p99_s = took[int(len(took) * 0.99)]
    return Seen(1e3 * statistics.median(took), 1e3 * p99_s, memory_mb, float(ended_s), goaway)


def idle_mb(tree: Path, hostile: Hostile) -> float:
    """What the memory of a new server has grown by, with idle connections that sent that."""
    with served(tree) as server:
        polite(server.port, 0.3)
        before_mb = server.resident_mb
        connections = hostile_connections(server.port, _NUM_IDLE, hostile)
        grown_mb = server.resident_mb - before_mb
        for each in connections:
            each.close()
        return grown_mb


def median_of(rounds: list[Seen]) -> Seen:
    """Of each measure; "none" of GOAWAY if one connection was closed without."""
    goaways = {each.goaway for each in rounds if each.ended_s < inf}
    return Seen(
        statistics.median_high(each.p50_ms for each in rounds),
        statistics.median_high(each.p99_ms for each in rounds),
        statistics.median_high(each.memory_mb for each in rounds),
        statistics.median_high(each.ended_s for each in rounds),
        max(goaways, default="none", key=len),
    )


class Report:
    """Rows and figures of the trees that are compared.

    Attributes:
        lines: as they were printed.
    """

    def __init__(self, trees: Mapping[str, Path]) -> None:
        self.lines: list[str] = []
        self._trees = trees
        self._verdicts: dict[str, list[bool]] = {name: [] for name in trees}

    def say(self, line: str) -> None:
        """Print a line."""
        self.lines.append(line)
        print(line, flush=True)

    def add_attacks(self, attacks: Iterable[str], num_rounds: int, seconds: float) -> None:
        """The table."""
        heads = [f"{column}, {name}" for name in self._trees for column in COLUMNS]
        self.say(f"| attack | {' | '.join(heads)} |")
        self.say("|---|" + "---:|" * len(heads))
        for attack in attacks:
            found: dict[str, list[Seen]] = {name: [] for name in self._trees}
            for _ in range(num_rounds):
                for name, tree in self._trees.items():
                    found[name].append(seen(tree, attack, seconds))
            medians = [median_of(rounds) for rounds in found.values()]
            self.say(f"| {attack} | {' | '.join(map(str, medians))} |")
            for name, median in zip(self._trees, medians, strict=True):
                self._verdicts[name].append(median.is_within)
        self.say("")

    def add_idle(self) -> None:
        """A line for each kind of hostile headers."""
        for sent, hostile in HOSTILE.items():
            for name, tree in self._trees.items():
                grown_mb = idle_mb(tree, hostile)
                is_within = grown_mb <= _IDLE_MB
                self._verdicts[name].append(is_within)
                figure = f"{grown_mb:.0f} MB of {_IDLE_MB}, {_verdict(is_within=is_within)}"
                self.say(f"{_NUM_IDLE:,} idle connections that sent {sent}, {name}: {figure}")

    def add_sum(self) -> None:
        """How many verdicts are good."""
        for name, verdicts in self._verdicts.items():
            self.say(f"{sum(verdicts)} of {len(verdicts)} within the figure, {name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--attacks", nargs="*", default=[*ATTACKS, *CROWDS])
    arguments = parser.parse_args()
    trees = {"now": Path.cwd()}
    if arguments.before:
        trees = {"before": arguments.before, **trees}
    # Servers inherit it.
    open_more_files()
    report = Report(trees)
    report.add_attacks(arguments.attacks, arguments.rounds, arguments.seconds)
    report.add_idle()
    report.add_sum()
    if arguments.write:
        arguments.write.write_text("\n".join(report.lines) + "\n")


if __name__ == "__main__":
    main()
