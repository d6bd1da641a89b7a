"""What a polite client's requests take while one connection floods the same server.

    python -m tests.benchmarks.floods [--before TREE] [--rounds 3] [--seconds 4] [--write FILE.md]

The polite client has a connection of its own and asks 100 times a second. The flooding one is a
process of its own; once it is ended it connects anew a second later, as a load balancer would let
it. With `--before` the same is asked of another tree's server (`git worktree add TREE REVISION`),
in turn: a busy machine then hits both alike. Tables show the median of rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc

from tests.benchmarks.floods.attacks import ATTACKS, NOTHING

EVERY_S = 0.01
_PATIENCE_S = 8.0


class Seen(NamedTuple):
    """Of one attack.

    Attributes:
        p50_ms, p99_ms: of the polite client's requests.
        ended_s: when the first flooding connection was ended; None if it never was.
    """

    p50_ms: float
    p99_ms: float
    ended_s: float | None


@contextmanager
def served(tree: Path) -> Iterator[tuple[int, int]]:
    """A server of that tree: its port and its process."""
    script = Path(__file__).with_name("server.py")
    with subprocess.Popen(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline()), server.pid
        finally:
            server.kill()


@contextmanager
def attacked(port: int, attack: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that floods that port."""
    command = [sys.executable, "-m", "tests.benchmarks.floods.attacker", str(port), attack]
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
    with served(tree) as (port, _):
        polite(port, 0.3)
        if attack == NOTHING:
            return _measured(port, seconds)
        with attacked(port, attack) as attacker:
            assert attacker.stdout is not None
            # Its imports take a while; the polite client shall see all of the flood.
            assert attacker.stdout.readline(), f"the attacker ended: {attacker.wait()}"
            found = _measured(port, seconds)
            attacker.kill()
            lasted = attacker.stdout.readline()
        return found._replace(ended_s=float(lasted) if lasted else None)


def _measured(port: int, seconds: float) -> Seen:
    took = sorted(polite(port, seconds))
    return Seen(1e3 * statistics.median(took), 1e3 * took[int(len(took) * 0.99)], None)


def cpu_s(pid: int) -> float:
    """Of a process as yet."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _median(found: list[Seen]) -> str:
    ended = [each.ended_s for each in found if each.ended_s is not None]
    last = f"{statistics.median(ended):.1f} s" if ended else "never"
    p50 = statistics.median(each.p50_ms for each in found)
    p99 = statistics.median(each.p99_ms for each in found)
    return f"{p50:.1f} | {p99:.1f} | {last}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS))
    arguments = parser.parse_args()
    trees = {"now": Path.cwd()}
    if arguments.before:
        trees = {"before": arguments.before, **trees}
    columns = ["p50 ms", "p99 ms", "ended after"]
    heads = [f"{column}, {name}" for name in trees for column in columns]
    lines = [f"| attack | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for attack in arguments.attacks:
        found: dict[str, list[Seen]] = {name: [] for name in trees}
        for _ in range(arguments.rounds):
            for name, tree in trees.items():
                found[name].append(seen(tree, attack, arguments.seconds))
        lines.append(f"| {attack} | {' | '.join(map(_median, found.values()))} |")
        print(lines[-1], flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
