"""Fuzzes a gateway and a replica in this process.

    python -m tests.faults.fuzz --count 100000 [--seed 0] [--write FILE.md]

Every request comes of its seed, so what a run finds another one shows again. The status is 1
when an answer had a wrong code or a wrong value, or something hung or complained.
"""

import argparse
import asyncio
import importlib.metadata
import logging
import platform
import sys
from pathlib import Path

from tests.faults.fuzz.run import Run, fuzz

_PACKAGES = ("grpcio", "protobuf", "numpy", "onnxruntime")


def table(run: Run) -> str:
    """What was sent, and how it was answered."""
    lines = ["| what was sent | answer | how often |", "|---|---|---:|"]
    lines += [f"| {kind} | {code} | {n:,} |" for (kind, code), n in sorted(run.answers.items())]
    warm, grown = run.warm_bytes / (1 << 20), run.grown_bytes / (1 << 20)
    return "\n".join(lines) + (
        f"\n\n{run.answers.total():,} in {run.duration_s:.0f} s; wrong: {len(run.faults)}. "
        "Resident memory of the one process with client, gateway, controller service and "
        f"replica: {warm:.0f} MiB after the warm-up, {grown:+.0f} MiB in the end.\n"
    )


def main() -> int:
    """Read the arguments, fuzz, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    # Each refusal is a line of the log, and here all are refused.
    logging.disable(logging.ERROR)
    run = asyncio.run(fuzz(arguments.count, arguments.seed))
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)
    text = f"CPython {platform.python_version()}, {found}\n\n{table(run)}"
    print(text)
    for fault in run.faults:
        print(fault)
    if arguments.write:
        arguments.write.write_text(text)
    return int(bool(run.faults))


if __name__ == "__main__":
    sys.exit(main())
