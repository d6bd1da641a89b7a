"""Measures the whole data plane beside its floor, Ray Serve's proxies, MLServer and Triton.

    python -m tests.benchmarks.dataplane [--rounds 5] [--seconds 2] [--payload tok]
                                         [--concurrency 32] [--peers FOLDER] [--write FILE.md]
                                         [--real-time]

MLServer and Triton (its server and Python backend, as nvidia-pytriton brings them) pin versions
that Smelt's environment does not have. They run in environments of their own, in one folder, and
one that is not there is left out:

    python -m venv FOLDER/mlserver && FOLDER/mlserver/bin/pip install mlserver==1.7.1
    python -m venv FOLDER/pytriton && FOLDER/pytriton/bin/pip install nvidia-pytriton==0.7.0

All servers run at once. Every round visits every load (payload, concurrency) once, in a new
order, and at each load all servers one after another, in a new order too: a busy minute of
the machine hits all alike. Tables show medians.

With `--real-time` the client and what it asks go before all others of the machine while a cell runs
(SCHED_RR; it takes root), and as long after it everybody else has the cores: what the servers that
are not asked do meanwhile, Ray's daemons above all, is then no part of anybody's figures.
"""

import argparse
import importlib.metadata
import platform
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.dataplane.alone import alone
from tests.benchmarks.dataplane.launch import start
from tests.benchmarks.dataplane.payloads import PAYLOADS
from tests.benchmarks.dataplane.peers import interpreters, peer_versions, started_peers
from tests.benchmarks.dataplane.servers import all_servers
from tests.benchmarks.dataplane.tables import Load, cell_of, summary
from tests.benchmarks.transport.measuring import measured
from tests.benchmarks.transport.report import Cell, Sample, table

CONCURRENCIES = (1, 32, 128)
_PACKAGES = ("grpcio", "protobuf", "uvloop", "ray", "onnxruntime", "numpy")


def run(
    rounds: int,
    seconds: float,
    loads: Sequence[Load],
    peers: Mapping[str, Path],
    *,
    is_real_time: bool,
) -> dict[Cell, list[Sample]]:
    """Starts everything, then visits all cells once a round."""
    with all_servers() as own, started_peers(peers) as others:
        servers = own | others
        cells = {load: [cell_of(v, *load) for v in servers] for load in loads}
        samples: dict[Cell, list[Sample]] = {cell: [] for row in cells.values() for cell in row}
        client = start("client")
        try:
            for number in range(rounds):
                for load in random.sample(loads, len(loads)):
                    for cell in random.sample(cells[load], len(servers)):
                        at = servers[cell.variant]
                        cpu_s = partial(at.cpu_s, cell.payload)
                        with alone(at, load[0], client.pid, seconds, is_real_time=is_real_time):
                            sample = measured(client, at.target, cell, seconds, cpu_s)
                        samples[cell].append(sample)
                print(f"round {number + 1} of {rounds} done", flush=True)
        finally:
            client.kill()
            client.wait()
    return samples


def versions() -> str:
    """Of Python and the libraries that matter here, as far as they are installed."""
    installed = {each.name for each in importlib.metadata.distributions()} & set(_PACKAGES)
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(installed))
    return f"CPython {platform.python_version()}, {found}"


def main() -> None:
    """Reads the arguments, measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a cell, without its warm-up")
    parser.add_argument("--payload", action="append", choices=PAYLOADS, help="only this one")
    parser.add_argument("--concurrency", action="append", type=int, help="only this one")
    parser.add_argument("--peers", type=Path, help="where MLServer's and Triton's environments are")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    parser.add_argument("--real-time", action="store_true", help="let nobody else run meanwhile")
    arguments = parser.parse_args()
    concurrencies = arguments.concurrency or CONCURRENCIES
    loads = [(p, c) for p in arguments.payload or PAYLOADS for c in concurrencies]
    peers = interpreters(arguments.peers)
    samples = run(
        arguments.rounds, arguments.seconds, loads, peers, is_real_time=arguments.real_time
    )
    text = (
        f"{versions()}{peer_versions(peers)}; "
        f"medians of {arguments.rounds} rounds of {arguments.seconds:g} s.\n\n"
        f"## Smelt against the others\n\n{summary(samples, loads)}\n## All figures\n\n"
    )
    text += "\n".join(line for load in loads for line in table(*load, samples))
    print(text)
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
